// Move quantize in front of an operator that only moves the result of a convolution, where nothing else reads either:
// it then stands behind the convolution, or behind its clips, and the kernel of these rounds.
//
//   %y = aten::conv2d(...)                                %y = aten::conv2d(...)
//   %v = aten::reshape(%y, %shape)                 ->     %p = jit_passes::quantize(%y, ...)
//   %q = jit_passes::quantize(%v, ...)                    %q = aten::reshape(%p, %shape)
//
// Exact, as sink_dequantize is. Questions for the shape are asked of the integers.
#include "graph/alias.h"
#include "graph/dialect.h"
#include "graph/graph.h"
#include "graph/operators.h"
#include "graph/places.h"
#include "graph/registry.h"
#include "passes/convolution.h"

namespace jit_passes {
namespace {

bool readsAlone(const Node* node) {
  return std::ranges::all_of(mainOperand(node)->uses(), [&](const Use& use) {
    return use.user == node ? use.offset == 0 : asksForShape(use.user);
  });
}

bool raise(Node* node, const std::unordered_set<const Value*>& written, bool volumes) {
  Node* move = inputOf(node, "x")->node();
  // A relu belongs to the kernel of the convolution.
  if (!movesQuantizedData(move, volumes) || isElementwise(move) || move->output()->uses().size() != 1 ||
      !isTensor(move->output()) || move->owningBlock() != node->owningBlock()) {
    return false;
  }
  Value* x = mainOperand(move);
  const Node* maker = convolutionBehind(x);
  if (maker == nullptr || maker->owningBlock() != node->owningBlock() || !readsAlone(move) ||
      written.count(x) || written.count(move->output())) {
    return false;
  }
  std::vector<Value*> operands = node->inputs().vec();
  operands[0] = x;
  Node* next = x->node()->next();
  for (size_t i = 1; i < operands.size(); ++i) {
    operands[i] = insertConstant(next, *constantOf(operands[i]));
  }
  const auto uses = x->uses(); // without that of quantize
  Value* codes = insertValue(next, node->kind(), operands, node);
  handOverPlace(node, codes->node());
  for (const Use& use : uses) {
    use.user->replaceInput(use.offset, codes);
  }
  node->output()->replaceAllUsesWith(move->output());
  node->destroy();
  return true;
}

bool raiseQuantize(PassContext& context) {
  const auto graph = context.graph();
  const auto written = writtenValues(graph);
  const bool volumes = hasVolumes(*graph);
  const auto found = nodesWhere(*graph, [](const Node* node) {
    return node->kind() == quantize &&
           std::all_of(node->inputs().begin() + 1, node->inputs().end(), isConstant);
  });
  bool changed = false;
  for (Node* node : found) {
    changed |= raise(node, written, volumes);
  }
  return changed;
}

const RegisterPass raise_quantize_pass{
    "raise_quantize", "Move quantize in front of what only moves the result of a convolution.", raiseQuantize,
    needs("no_observers")};

} // namespace
} // namespace jit_passes
