// Remove dropout of all kinds that is off for certain.
//
//   %y = aten::dropout(%x, %p, False)   ->   %x
#include "graph/operators.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

bool removeDropout(PassContext& context) {
  return replaceNodes(*context.graph(), [](Node* node) {
    return isDropout(node) && constantNumber(node, "train") == 0.0 ? mainOperand(node) : nullptr;
  });
}

const RegisterPass remove_dropout_pass{
    "remove_dropout", "Remove dropout, which does nothing in eval mode.", removeDropout, needs("inlined")};

} // namespace
} // namespace jit_passes
