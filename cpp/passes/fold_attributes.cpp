// Take attributes that are flags, numbers and texts for constants, where the method does not assign them.
//
//   %residual : bool = prim::GetAttr[name="residual"](%block)   ->   %residual : bool = prim::Constant[value=1]()
//
// For graphs that keep their parameters; freezing does it to all attributes. A branch on such a flag is
// then decided, and what it leads around is not there for quantizers. `training` changes, and stays.
#include "core/known_values.h"

namespace jit_passes {
namespace {

bool foldAttributes(PassContext& context) {
  const KnownValues known(context);
  bool changed = false;
  forEachNode(*context.graph(), [&](Node* node) {
    if (node->kind() != c10::prim::GetAttr || node->s(c10::attr::name) == "training") {
      return;
    }
    const auto held = known.attribute(node->output());
    const bool plain = held && (held->isBool() || held->isInt() || held->isDouble() || held->isString());
    if (plain && node->output()->type()->isSubtypeOf(*held->type())) {
      replaceNode(node, insertConstant(node, *held));
      changed = true;
    }
  });
  return changed;
}

const RegisterPass fold_attributes_pass{
    "fold_attributes",
    "Take flags, numbers and texts that nothing assigns for constants.",
    foldAttributes,
    {"inlined"}};

} // namespace
} // namespace jit_passes
