// Give operators with integer weights copies of values that are written in place. The operators can then be fused
// with others, and run at another time than the writes.
//
//   %s, %z = jit_passes::choose_qparams(%x, ...)            %c = aten::clone(%x, None)
//   %q = jit_passes::quantize_dynamic(%x, %s, %z, ...)      %s, %z = jit_passes::choose_qparams(%c, ...)
//   %d = jit_passes::dequantize_dynamic(%q, %s, %z)    ->   %q = jit_passes::quantize_dynamic(%c, %s, %z, ...)
//   %y = aten::linear(%d, %w, %bias)                        ...
//   %a = aten::add_(%y, %x, %one)                           %o = aten::linear(%d, %w, %bias)
//                                                           %y = aten::clone(%o, None)
//                                                           %a = aten::add_(%y, %x, %one)
//
// A result that is written to is copied too: readers that must see the write read the copy.
#include "graph/alias.h"
#include "graph/dialect.h"
#include "graph/graph.h"
#include "graph/operators.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

bool isDequantized(const Value* value) {
  const Node* node = value->node();
  return node->kind() == prim::ListConstruct ? std::ranges::any_of(node->inputs(), isDequantized)
                                             : startsWith(node, "jit_passes::dequantize");
}

bool readsIntegerWeights(const Node* node) {
  const auto& table = operatorTable();
  const auto traits = table.find(node->kind().toQualString());
  return traits != table.end() && (traits->second.weighted || traits->second.holds_weights) &&
         std::ranges::any_of(node->inputs(), isDequantized);
}

class Copies {
 public:
  explicit Copies(const std::shared_ptr<Graph>& graph) : written_(writtenValues(graph)) {}

  // Copies a value that is quantized at run time, by two nodes one after the other. Returns whether it did.
  bool quantized(Node* choice) const {
    Node* codes = choice->next();
    Value* value = inputOf(choice, "x");
    if (!isWritten(value) || codes->kind() != quantize_dynamic || inputOf(codes, "x") != value ||
        inputOf(codes, "scale") != choice->output(0)) {
      return false;
    }
    Value* copy = copyOf(value, choice);
    choice->replaceInput(0, copy);
    codes->replaceInput(0, copy);
    return true;
  }

  bool computed(Node* node) {
    bool changed = false;
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      if (isWritten(node->input(i))) {
        node->replaceInput(i, copyOf(node->input(i), node));
        changed = true;
      }
    }
    for (Value* output : node->outputs()) {
      if (isWritten(output)) {
        Value* copy = copyOf(output, node->next());
        copy->node()->copyMetadata(node);
        output->replaceAllUsesAfterNodeWith(copy->node(), copy);
        written_.insert(copy);
        changed = true;
      }
    }
    return changed;
  }

 private:
  bool isWritten(const Value* value) const { return isTensor(value) && written_.count(value) > 0; }

  static Value* copyOf(Value* value, Node* before) {
    return insertValue(before, aten::clone, {value, insertConstant(before, {})}, before, value->type());
  }

  std::unordered_set<const Value*> written_;
};

bool copyWritten(PassContext& context) {
  const auto graph = context.graph();
  Copies copies(graph);
  return changeNodes(*graph, [&](Node* node) {
    if (node->kind() == choose_qparams) {
      return copies.quantized(node);
    }
    return readsIntegerWeights(node) && copies.computed(node);
  });
}

const RegisterPass copy_written_pass{
    "copy_written", "Give operators with integer weights copies of values that are written in place.",
    copyWritten, needs("no_observers")};

} // namespace
} // namespace jit_passes
