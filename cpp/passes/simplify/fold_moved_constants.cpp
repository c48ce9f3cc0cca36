// Compute functions of a constant ahead of the operators that cut or repeat it according to sizes.
//
//   %m = aten::slice(%bias, 2, 0, %t, 1)        ->   %m = aten::slice(%hidden, 2, 0, %t, 1)
//   %h = aten::eq(%m, 0)
//   %y = aten::masked_fill(%x, %h, -inf)             %y = aten::masked_fill(%x, %m, -inf)
//
// Models keep a mask for the largest number of tokens, and cut and compare it in each call. Readers of the result
// must give new tensors, so no node can write to the constant.
#include "facts/shape_facts.h"
#include "graph/alias.h"
#include "graph/operators.h"
#include "simplify.h"

namespace jit_passes {
namespace {

// Whether all operands but the tensor that is moved are numbers.
bool isFunctionOf(const Node* node, const Value* moved) {
  return std::ranges::all_of(node->inputs(), [&](const Value* operand) {
    const auto tensor = constantTensor(operand);
    return operand == moved ||
           (isConstant(operand) && (!isTensor(operand) || (tensor && tensor->dim() == 0)));
  });
}

bool isFunction(const Node* node) {
  static const auto kinds = symbols({"aten::logical_not", "aten::bitwise_not"});
  return (isElementwise(node) || kinds.count(node->kind()) > 0) && !mayWrite(node);
}

// The only tensor operand of the node, if it is a constant after moves; null otherwise.
Value* movedOperand(Node* node) {
  if (!isFunction(node) || !isTensor(node->output())) {
    return nullptr;
  }
  Value* moved = nullptr;
  for (Value* operand : node->inputs()) {
    moved = isTensor(operand) && !isConstant(operand) ? operand : moved;
  }
  const Node* constant = moved != nullptr ? movedConstant(moved->node()) : nullptr;
  const bool reads = std::ranges::all_of(node->output()->uses(), [](const torch::jit::Use& use) {
    return isFunction(use.user) || use.user->kind() == aten::masked_fill;
  });
  const bool known = constant != nullptr && constant->kind() == prim::Constant;
  return known && reads && isFunctionOf(node, moved) ? moved : nullptr;
}

// Repeats the moves between a constant and its reader with another constant.
Value* movedAgain(Value* moved, Value* constant, Node* before) {
  if (isConstant(moved)) {
    return constant;
  }
  Value* from = movedAgain(mainOperand(moved->node()), constant, before);
  Node* copy = before->owningGraph()->createClone(moved->node(), [](Value* value) { return value; });
  copy->insertBefore(before);
  copy->replaceInput(0, from);
  return copy->output();
}

} // namespace

bool foldMovedConstants(PassContext& context) {
  bool changed = false;
  const auto functions = nodesWhere(
      *context.graph(), [](const Node* node) { return movedOperand(const_cast<Node*>(node)) != nullptr; });
  const auto written =
      functions.empty() ? std::unordered_set<const Value*>() : writtenValues(context.graph());
  for (Node* node : functions) {
    Value* moved = movedOperand(node);
    if (moved == nullptr || written.count(moved) > 0 || written.count(node->output()) > 0) {
      continue;
    }
    Value* constant = const_cast<Node*>(movedConstant(moved->node()))->output();
    Node* whole = context.graph()->createClone(
        node, [&](Value* operand) { return operand == moved ? constant : operand; });
    whole->insertBefore(node);
    const auto found = torch::jit::runNodeIfInputsAreConstant(whole);
    whole->destroy();
    if (!found || !found->front().isTensor()) {
      continue;
    }
    Value* result = movedAgain(moved, insertConstant(node, found->front()), node);
    node->output()->replaceAllUsesWith(result);
    node->destroy();
    changed = true;
  }
  return changed;
}

} // namespace jit_passes
