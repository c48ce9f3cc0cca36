// Decide checks for None by the type of the value, and drop casts to a type that the value has. Checks and casts
// come from inlined functions with an optional argument.
//
//   %b : bool = aten::__isnot__(%tensor, %none)        ->   %b : bool = prim::Constant[value=1]()
//   %y : Tensor = prim::unchecked_cast(%tensor)        ->   %tensor
//
// A branch gives no None if neither side does, or if the side that runs is known and gives none:
//
//   %m : Tensor? = prim::If(%b)                        ->   %m : Tensor = prim::If(%b)
//     block0(): -> (%tensor)
//     block1(): -> (%other)
//
// Decide checks whether two values are one: PyTorch's attention asks whether query, key and value are one tensor.
// Two results of a branch are one if they are one on both sides. Two equal views of one value count as one, as in
// PyTorch's elimination of common subexpressions.
//
//   %b : bool = aten::__is__(%x, %x)                   ->   %b : bool = prim::Constant[value=1]()
//
// A new tensor from an operator is neither an input of the model nor a tensor from another operator, and views of
// two different tensors are different.
//
// PyTorch's peephole pass is no alternative: it decides checks for None too, but assumes that a convolution's result
// has a batch axis.
#include "graph/alias.h"
#include "graph/graph.h"
#include "graph/operators.h"
#include "simplify.h"

namespace jit_passes {
namespace {

bool neverNone(const Value* value) { return !c10::NoneType::get()->isSubtypeOf(*value->type()); }

bool isSame(const Value* a, const Value* b) {
  const Node *left = a->node(), *right = b->node();
  if (a == b) {
    return true;
  }
  if (left == right && left->kind() == prim::If) {
    const auto known = constantNumber(left->input());
    for (const size_t i : {0, 1}) {
      const auto outputs = left->blocks()[i]->outputs();
      if (known != (i == 0 ? 0.0 : 1.0) && !isSame(outputs[a->offset()], outputs[b->offset()])) {
        return false;
      }
    }
    return true;
  }
  return left->kind() == aten::unsqueeze && right->kind() == aten::unsqueeze &&
         isSame(inputOf(left, "self"), inputOf(right, "self")) && constantNumber(left, "dim") &&
         constantNumber(left, "dim") == constantNumber(right, "dim");
}

// Whether the operator gives a new tensor.
bool makesTensor(const Node* node) {
  return (weightedOperator(node) || isElementwise(node) || isNormalization(node->kind()) ||
          node->kind() == aten::layer_norm) &&
         !mayWrite(node) && !returnsAlias(node) && !returnsHiddenAlias(node->kind());
}

// Whether the tensors that both values view are different for certain.
bool isOther(const Value* a, const Value* b) {
  const auto origin = [](const Value* value) {
    while (returnsAlias(value->node())) {
      value = mainOperand(value->node());
    }
    return value;
  };
  const auto is_given = [](const Value* value) {
    return value->node()->kind() == prim::Param &&
           value->node()->owningBlock() == value->owningGraph()->block();
  };
  a = origin(a);
  b = origin(b);
  return a != b && ((makesTensor(a->node()) && (makesTensor(b->node()) || is_given(b))) ||
                    (is_given(a) && makesTensor(b->node())));
}

// Gives a branch's results the types of both sides, or of the side that runs. Returns whether a type became
// narrower.
bool narrowResults(Node* branch) {
  bool changed = false;
  const auto known = constantNumber(branch->input());
  for (size_t i = 0; i < branch->outputs().size(); ++i) {
    Value* result = branch->output(i);
    if (result->type()->kind() != c10::TypeKind::OptionalType) {
      continue;
    }
    const auto element = result->type()->expectRef<c10::OptionalType>().getElementType();
    bool narrow = true;
    for (const size_t side : {0, 1}) {
      const bool taken = !known || (*known != 0) == (side == 0);
      narrow = narrow && (!taken || branch->blocks()[side]->outputs()[i]->type()->isSubtypeOf(*element));
    }
    if (narrow) {
      result->setType(element);
      changed = true;
    }
  }
  return changed;
}

} // namespace

bool resolveNoneChecks(PassContext& context) {
  bool narrowed = false;
  const bool replaced = replaceNodes(*context.graph(), [&](Node* node) {
    const bool is = node->kind() == aten::__is__, is_not = node->kind() == aten::__isnot__;
    const Value *a = is || is_not ? inputOf(node, "self") : nullptr, *b = a ? inputOf(node, "obj") : nullptr;
    const bool casts = node->kind() == prim::unchecked_cast ||
                       node->kind() == prim::unchecked_unwrap_optional ||
                       node->kind() == aten::_unwrap_optional;
    Value* replacement = nullptr;
    if (node->kind() == prim::If) {
      narrowed |= narrowResults(node);
    } else if (casts && node->input()->type()->isSubtypeOf(*node->output()->type())) {
      replacement = node->input();
    } else if (a != nullptr && isTensor(a) && isSame(a, b)) {
      replacement = insertConstant(node, is);
    } else if (a != nullptr && isTensor(a) && isOther(a, b)) {
      replacement = insertConstant(node, is_not);
    } else if (a != nullptr && ((isNone(a) && neverNone(b)) || (isNone(b) && neverNone(a)))) {
      replacement = insertConstant(node, is_not);
    }
    return replacement;
  });
  return replaced || narrowed;
}

} // namespace jit_passes
