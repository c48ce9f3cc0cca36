// Give in-place operators their functional form wherever nobody can tell the difference.
//
//   %y = aten::relu_(%x)   ->   %y = aten::relu(%x)     when no other name of %x is read later
//
// PyTorch's alias analysis decides; what it cannot prove stays in place, and later passes leave
// those values in float.
//
// Two kinds stay in place, because the functional form is not the same operator:
// - comparisons and logical operators, which then return bool;
// - random numbers, which have no derivative then.
//
// copy_ becomes what has a derivative, unlike aten::copy:
//
//   %y = aten::copy_(%x, %src, %b)   ->   %t = aten::type_as(%src, %x)
//                                         %e = aten::expand_as(%t, %x)
//                                         %y = aten::clone(%e, %none)
//
// PyTorch's analysis takes the result of dropout for a tensor of its own. In eval mode it is the operand, so what is
// written to on either side of a dropout that may be off stays in place too.
#include "core/alias.h"
#include "core/operators.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool mayBeOff(const Node* node) { return isDropout(node) && constantNumber(node->input(2)) != 1.0; }

// The value that the memory comes from: behind views, writes and dropout that may be off.
const Value* sourceOf(const Value* value) {
  while (!value->node()->inputs().empty() && (mayBeOff(value->node()) || returnsAlias(value->node()))) {
    value = value->node()->input(0);
  }
  return value;
}

// By name: overloads of an operator agree.
bool isAnotherOperator(const Node* node) {
  static const auto kinds = symbols(
      {"aten::eq_",
       "aten::ne_",
       "aten::lt_",
       "aten::le_",
       "aten::gt_",
       "aten::ge_",
       "aten::not_equal_",
       "aten::less_",
       "aten::less_equal_",
       "aten::greater_",
       "aten::greater_equal_",
       "aten::logical_and_",
       "aten::logical_not_",
       "aten::logical_or_",
       "aten::logical_xor_",
       "aten::bernoulli_",
       "aten::cauchy_",
       "aten::exponential_",
       "aten::geometric_",
       "aten::log_normal_",
       "aten::random_",
       "aten::uniform_"});
  return kinds.count(node->kind()) > 0;
}

bool expandCopies(Graph& graph) {
  return replaceNodes(graph, [](Node* node) -> Value* {
    if (node->kind() != aten::copy || !isTensor(node->output())) {
      return nullptr;
    }
    Value* self = node->input(0);
    Value* typed = insertValue(node, aten::type_as, {node->input(1), self}, node);
    Value* expanded = insertValue(node, aten::expand_as, {typed, self}, node);
    return insertValue(node, aten::clone, {expanded, insertConstant(node, {})}, node);
  });
}

bool replaceInplace(PassContext& context) {
  const auto graph = context.graph();
  std::unordered_set<const Value*> dropped;
  forEachNode(*graph, [&](const Node* node) {
    if (mayBeOff(node)) {
      dropped.insert(sourceOf(node->input(0)));
    }
  });
  const bool changed = torch::jit::RemoveTensorMutation(graph, [&](const Node* node) {
    return !isAnotherOperator(node) && (node->inputs().empty() || !dropped.count(sourceOf(node->input(0))));
  });
  return expandCopies(*graph) || changed;
}

const RegisterPass replace_inplace_pass{
    "replace_inplace", "Turn in-place operators into functional ones where aliasing allows it.",
    replaceInplace, needs("inlined")};

} // namespace
} // namespace jit_passes
