// Replace observers, or what a model trained with, by quantize and dequantize with the parameters found.
//
//   %y = aten::conv2d(...)                         ->  %y = aten::conv2d(...)
//   jit_passes::observe_histogram(%y, %range, ...)     %q = jit_passes::quantize(%y, scale, zero_point, ...)
//                                                      %d = jit_passes::dequantize(%q, scale, zero_point)
//
//   %y = jit_passes::train_lsq(%x, %scale, ...)    ->  %q = jit_passes::quantize(%x, scale, zero_point, ...)
//                                                      %d = jit_passes::dequantize(%q, scale, zero_point)
//
// All later uses of %y see %d. Edges and the observers' buffers are removed. An observer without
// parameters (never reached, say) leaves its value in float, and so does a place that trained.
#include "core/graph.h"
#include "core/observers.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

using c10::Symbol;

// (scale, zero_point, axis, quant_min, quant_max, dtype); scale and zero_point are tensors where
// there is an axis.
Value* quantizeDequantize(Node* before, Value* value, const c10::ivalue::Tuple& parameters) {
  const std::vector<c10::IValue> fields = parameters.elements().vec();
  const bool per_channel = !fields[2].isNone();
  const auto constant = [&](size_t field) { return insertConstant(before, fields[field]); };
  std::vector<Value*> grid{constant(0), constant(1)};
  if (per_channel) {
    grid.push_back(constant(2));
  }
  std::vector<Value*> operands{value};
  operands.insert(operands.end(), grid.begin(), grid.end());
  operands.insert(operands.end(), {constant(3), constant(4), constant(5)});
  const char* suffix = per_channel ? "_per_channel" : "";
  Node* quantize = insertNode(
      before, Symbol::fromQualString(std::string("jit_passes::quantize") + suffix), operands, before);
  grid.insert(grid.begin(), quantize->output());
  Node* dequantize = insertNode(
      before, Symbol::fromQualString(std::string("jit_passes::dequantize") + suffix), grid, before);
  return dequantize->output();
}

void redirectUses(Value* value, Value* replacement, const Node* first) {
  const auto uses = value->uses(); // a copy: the loop edits the list
  for (const auto& use : uses) {
    if (use.user != first && !isObserver(use.user)) {
      use.user->replaceInput(use.offset, replacement);
    }
  }
}

// With the operands that were there for it: its buffers, name and specification.
void destroyObserver(Node* observer) {
  const std::vector<Value*> operands(observer->inputs().begin() + 1, observer->inputs().end());
  observer->destroy();
  for (Value* operand : operands) {
    const bool observers_own = isConstant(operand) || operand->node()->kind() == c10::prim::GetAttr;
    if (observers_own && !operand->hasUses()) {
      operand->node()->destroy();
    }
  }
}

// The copy of what will be written to was for autograd. Another one, of the model's, may be further up, with
// writes in between.
Value* uncopied(Node* trained) {
  Node* maker = trained->prev();
  while (maker->kind() == c10::prim::Constant) {
    maker = maker->prev();
  }
  const bool copied = maker->kind() == c10::aten::clone && maker->output() == trained->input(0);
  return copied ? maker->input(0) : trained->input(0);
}

void replaceTrained(Node* node, const c10::IValue& parameters) {
  Value* value = uncopied(node);
  const bool stays_float = parameters.isNone();
  replaceNode(node, stays_float ? value : quantizeDequantize(node, value, parameters.toTupleRef()));
}

bool insertQuantizeDequantize(PassContext& context) {
  static const auto edge = Symbol::fromQualString("jit_passes::edge");
  const auto graph = context.graph();
  const auto parameters = context.option("parameters").toListRef();
  const auto observers = observersOf(*graph);
  if (const auto trained = trainedOf(*graph); !trained.empty()) {
    TORCH_CHECK(parameters.size() == trained.size(), "one entry for each place is expected");
    for (size_t i = 0; i < trained.size(); ++i) {
      replaceTrained(trained[i], parameters[i]);
    }
    return true;
  }
  TORCH_CHECK(parameters.size() == observers.size(), "one entry for each observer is expected");
  for (size_t i = 0; i < observers.size(); ++i) {
    if (parameters[i].isNone()) {
      continue;
    }
    Value* value = observers[i]->input(0);
    Value* replacement = quantizeDequantize(observers[i], value, parameters[i].toTupleRef());
    redirectUses(value, replacement, replacement->node()->input(0)->node());
  }
  for (Node* observer : observers) {
    destroyObserver(observer);
  }
  forEachNode(*graph, [&](Node* node) {
    if (node->kind() == edge) {
      replaceNode(node, node->input(0));
    }
  });
  return !observers.empty();
}

std::optional<std::string> checkNoObservers(const PassContext& context) {
  const auto observers = observersOf(*context.graph());
  return observers.empty() ? std::nullopt
                           : std::optional("an observer is left: " + describe(observers.front()));
}

const RegisterInvariant no_observers{"no_observers", "No observers.", checkNoObservers};
const RegisterPass registration{
    "insert_quantize_dequantize",
    "Replace observers, and what trained, by quantize and dequantize.",
    insertQuantizeDequantize,
    {"inlined"},
    {"no_observers"},
    {{"parameters", "list"}}};

} // namespace
} // namespace jit_passes
