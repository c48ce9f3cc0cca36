// Turn attributes that are flags, numbers and strings into constants, unless the method assigns to them.
//
//   %residual : bool = prim::GetAttr[name="residual"](%block)   ->   %residual : bool = prim::Constant[value=1]()
//
// For graphs that keep their parameters; freezing does this for all attributes. A branch on a flag is then decided,
// and quantizers do not see the other side. `training` changes, and stays.
#include "facts/known_values.h"

namespace jit_passes {
namespace {

bool foldAttributes(PassContext& context) {
  const KnownValues known(context);
  return replaceNodes(*context.graph(), [&](Node* node) -> Value* {
    if (node->kind() != prim::GetAttr || node->s(attr::name) == "training") {
      return nullptr;
    }
    const auto held = known.attribute(node->output());
    const bool plain = held && (held->isBool() || held->isInt() || held->isDouble() || held->isString());
    const bool fits = plain && node->output()->type()->isSubtypeOf(*held->type());
    return fits ? insertConstant(node, *held) : nullptr;
  });
}

const RegisterPass fold_attributes_pass{
    "fold_attributes", "Turn flags, numbers and strings that nothing assigns into constants.", foldAttributes,
    needs("inlined")};

} // namespace
} // namespace jit_passes
