// Replace quantize and dequantize of the dialect, which are left at the borders between float and integers, by
// PyTorch's operators on quantized dtypes.
//
//   %q = jit_passes::quantize(%x, scale, zero_point, 0, 255, uint8)
//     ->  %q = aten::quantize_per_tensor(%x, scale, zero_point, quint8)
//   %d = jit_passes::dequantize(%q, scale, zero_point)
//     ->  %d = aten::dequantize(%q)
//
// Quantized operators return channels-last. The float model's layout is restored where it has an effect: in results
// of the model, in values that are written in place, and in operands of reshape and the like whose result is written
// to, since the layout decides whether that is a view:
//
//   %d = jit_passes::dequantize(%q, scale, zero_point)
//     ->  %c = aten::contiguous(%q, 0)
//         %d = aten::dequantize(%c)
//
// Views of the integers then become views of %d, since dequantize would give them another layout.
#include "graph/alias.h"
#include "graph/dialect.h"
#include "graph/graph.h"
#include "graph/operators.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

at::ScalarType quantizedDtype(const Node* node) {
  const auto dtype = static_cast<at::ScalarType>(*constantNumber(node, "dtype"));
  TORCH_CHECK(
      dtype == at::kByte || dtype == at::kChar,
      "PyTorch's quantized operators work on uint8 and int8, not on ", dtype);
  return dtype == at::kByte ? at::kQUInt8 : at::kQInt8;
}

// Whether the value is returned, alone or in a tuple, list or dict.
bool isResult(const Value* value) {
  return std::ranges::any_of(value->uses(), [](const Use& use) {
    return use.user->kind() == prim::Return || use.user->kind() == prim::TupleConstruct ||
           use.user->kind() == prim::ListConstruct || use.user->kind() == prim::DictConstruct;
  });
}

// Whether the layout of the operand decides if the node returns a view, a copy or an error.
bool dependsOnLayout(const Node* node) {
  static const std::unordered_set<c10::Symbol> kinds{
      aten::contiguous, aten::reshape, aten::reshape_as, aten::flatten,   aten::ravel,
      aten::view,       aten::view_as, aten::as_strided, aten::unflatten, aten::to};
  return kinds.count(node->kind()) > 0;
}

using ValueSet = std::unordered_set<const Value*>;

// Adds all values that the value is computed from, of a branch or loop all that it reads.
void addSources(const Value* value, ValueSet& seen) {
  std::vector<const Value*> left{value};
  const auto take = [&](at::ArrayRef<const Value*> values) {
    left.insert(left.end(), values.begin(), values.end());
  };
  while (!left.empty()) {
    const Value* last = left.back();
    left.pop_back();
    if (!seen.insert(last).second) {
      continue;
    }
    const Node* node = last->node();
    const Node* owner = node->owningBlock()->owningNode();
    take(node->inputs());
    if (node->kind() == prim::Param && owner != nullptr) {
      take(owner->outputs());
    }
    for (const Block* block : node->blocks()) {
      take(block->outputs());
    }
    if (owner != nullptr) {
      take(owner->inputs());
    }
  }
}

// Values whose layout decides which memory is written to, or is the result of a node.
ValueSet valuesWithLayout(Graph& graph, const ValueSet& written) {
  ValueSet found;
  forEachNode(graph, [&](const Node* node) {
    if (tellsLayout(node) || (!written.empty() && dependsOnLayout(node) && written.count(node->output()))) {
      addSources(mainOperand(node), found);
    }
  });
  return found;
}

bool returnsView(const Node* node) {
  return returnsAlias(node) && node->outputs().size() == 1 && !node->schema().is_mutable();
}

// Inserts dequantize in front of the node, with the layout of the float model.
Value* dequantizeInLayout(Node* node) {
  std::vector<Node*> views;
  Value* base = inputOf(node, "q");
  while (returnsView(base->node())) {
    views.push_back(base->node());
    base = mainOperand(base->node());
  }
  Value* format = insertConstant(node, static_cast<int64_t>(at::MemoryFormat::Contiguous));
  Value* laid_out = insertValue(node, aten::contiguous, {base, format}, node);
  Value* last = insertValue(node, aten::dequantize, {laid_out}, node);
  for (auto view = views.rbegin(); view != views.rend(); ++view) {
    Node* copy = node->owningGraph()->createClone(*view, [](Value* value) { return value; });
    copy->replaceInput(0, last);
    last = copy->insertBefore(node)->output();
  }
  return last;
}

bool lowerQuantizeDequantize(PassContext& context) {
  const auto graph = context.graph();
  const auto written = writtenValues(graph);
  const auto laid_out = valuesWithLayout(*graph, written);
  return replaceNodes(*graph, [&](Node* node) -> Value* {
    if (node->kind() == quantize) {
      Value* dtype = insertConstant(node, static_cast<int64_t>(quantizedDtype(node)));
      const auto operands = {inputOf(node, "x"), inputOf(node, "scale"), inputOf(node, "zero_point"), dtype};
      return insertValue(node, aten::quantize_per_tensor, operands, node);
    }
    if (node->kind() != dequantize) {
      return nullptr;
    }
    const Value* output = node->output();
    return isResult(output) || written.count(output) || laid_out.count(output)
               ? dequantizeInLayout(node)
               : insertValue(node, aten::dequantize, {inputOf(node, "q")}, node);
  });
}

const RegisterPass lower_quantize_dequantize_pass{
    "lower_quantize_dequantize", "Turn quantize and dequantize into PyTorch's quantized dtypes.",
    lowerQuantizeDequantize, needs("no_observers")};

} // namespace
} // namespace jit_passes
