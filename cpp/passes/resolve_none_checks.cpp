// Decide checks for None where the type says enough, and drop casts to a type that the value has.
// Inlining brings both: a function with an optional argument was called with one.
//
//   %b : bool = aten::__isnot__(%tensor, %none)        ->   %b : bool = prim::Constant[value=1]()
//   %y : Tensor = prim::unchecked_cast(%tensor)        ->   %tensor
//
// PyTorch's peephole pass does this too, and takes a convolution's result to have a batch axis.
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool neverNone(const Value* value) { return !c10::NoneType::get()->isSubtypeOf(*value->type()); }

bool resolveNoneChecks(PassContext& context) {
  bool changed = false;
  forEachNode(*context.graph(), [&](Node* node) {
    const bool is = node->kind() == c10::aten::__is__, is_not = node->kind() == c10::aten::__isnot__;
    const bool casts = node->kind() == c10::prim::unchecked_cast ||
                       node->kind() == c10::prim::unchecked_unwrap_optional ||
                       node->kind() == c10::aten::_unwrap_optional;
    Value* replacement = nullptr;
    if (casts && node->input()->type()->isSubtypeOf(*node->output()->type())) {
      replacement = node->input();
    } else if (is || is_not) {
      for (const size_t side : {0, 1}) {
        if (isNone(node->input(side)) && neverNone(node->input(1 - side))) {
          replacement = insertConstant(node, is_not);
        }
      }
    }
    if (replacement != nullptr) {
      replaceNode(node, replacement);
      changed = true;
    }
  });
  return changed;
}

const RegisterPass resolve_none_checks_pass{
    "resolve_none_checks", "Decide checks for None of values that cannot be.", resolveNoneChecks};

} // namespace
} // namespace jit_passes
