// Move dequantize after operators that only move data, so that these run on integers.
//
//   %d = jit_passes::dequantize(%q, scale, zero_point)       %v = aten::view(%q, %shape)
//   %v = aten::view(%d, %shape)                         ->   %d = jit_passes::dequantize(%v, scale, zero_point)
//
// This is exact: the operator's result holds elements of its operand and zeros, and zero has a code. Nodes that ask
// for the shape ask the integers. A value that an in-place operator writes to stays in place.
//
// Move quantize in front of an operator that only moves the result of a convolution, if both results have no other
// reader. Quantize then stands after the convolution, or after its clips, and their kernel rounds.
//
//   %y = aten::conv2d(...)                                %y = aten::conv2d(...)
//   %v = aten::reshape(%y, %shape)                 ->     %p = jit_passes::quantize(%y, ...)
//   %q = jit_passes::quantize(%v, ...)                    %q = aten::reshape(%p, %shape)
//
// This is exact too.
#include "graph/alias.h"
#include "graph/dialect.h"
#include "graph/graph.h"
#include "graph/operators.h"
#include "graph/places.h"
#include "graph/registry.h"
#include "passes/convolution.h"

namespace jit_passes {
namespace {

Value* insertDequantize(Node* before, Value* codes, const Node* like) {
  return insertValue(before, dequantize, {codes, inputOf(like, "scale"), inputOf(like, "zero_point")}, like);
}

void redirect(Value* from, Value* to) {
  from->replaceAllUsesWith(to);
  to->node()->replaceInput(0, from);
}

// For an operator whose result is a list: dequantizes the results of the node that unpacks it, if there is exactly
// one.
bool sinkThroughList(Node* node, Node* source) {
  const auto& uses = node->output()->uses();
  if (uses.size() != 1 || uses[0].user->kind() != prim::ListUnpack) {
    return false;
  }
  Node* unpack = uses[0].user;
  node->replaceInput(0, inputOf(source, "q"));
  Node* next = unpack->next();
  for (Value* output : unpack->outputs()) {
    redirect(output, insertDequantize(next, output, source));
  }
  return true;
}

bool sinkThrough(Node* node, Node* source) {
  if (node->output()->type()->kind() == c10::TypeKind::ListType) {
    return sinkThroughList(node, source);
  }
  node->replaceInput(0, inputOf(source, "q"));
  redirect(node->output(), insertDequantize(node->next(), node->output(), source));
  return true;
}

bool sinkAll(PassContext& context) {
  const auto graph = context.graph();
  const auto written = writtenValues(graph);
  const bool volumes = hasVolumes(*graph);
  const bool changed = changeNodes(*graph, [&](Node* node) {
    if (node->inputs().empty() || mainOperand(node)->node()->kind() != dequantize) {
      return false;
    }
    if (asksForShape(node)) {
      node->replaceInput(0, inputOf(mainOperand(node)->node(), "q"));
      return true;
    }
    return movesQuantizedData(node, volumes) && !written.count(mainOperand(node)) &&
           !written.count(node->output()) && sinkThrough(node, mainOperand(node)->node());
  });
  if (changed) {
    removeDeadNodes(graph);
  }
  return changed;
}

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
  const auto uses = x->uses(); // before the use of the new quantize
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
  const auto found =
      nodesWhere(*graph, [](const Node* node) { return node->kind() == quantize && constantFrom(node, 1); });
  bool changed = false;
  for (Node* node : found) {
    changed |= raise(node, written, volumes);
  }
  return changed;
}

bool sinkDequantize(PassContext& context) {
  const bool raised = raiseQuantize(context);
  return sinkAll(context) || raised;
}

const RegisterPass sink_dequantize_pass{
    "sink_dequantize", "Move dequantize behind operators that only move data, and quantize in front of them.",
    sinkDequantize, needs("no_observers")};

} // namespace
} // namespace jit_passes
