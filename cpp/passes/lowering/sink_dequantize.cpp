// Move dequantize behind operators that only move data, so that these run on integers.
//
//   %d = jit_passes::dequantize(%q, scale, zero_point)       %v = aten::view(%q, %shape)
//   %v = aten::view(%d, %shape)                         ->   %d = jit_passes::dequantize(%v, scale, zero_point)
//
// Exact: the operator's result holds values of its operand and zeros, and zero is on the grid.
// Questions for the shape are asked of the integers. Values that an in-place operator writes to
// stay where they are.
#include "graph/alias.h"
#include "graph/dialect.h"
#include "graph/graph.h"
#include "graph/operators.h"
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

// Results as a list: dequantize what the one unpacking of it gives.
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

bool sinkDequantize(PassContext& context) {
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

const RegisterPass sink_dequantize_pass{
    "sink_dequantize", "Move dequantize behind operators that only move data.", sinkDequantize,
    needs("no_observers")};

} // namespace
} // namespace jit_passes
