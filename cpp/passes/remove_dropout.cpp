// Remove dropout of all kinds where it is known to be off.
//
//   %y = aten::dropout(%x, %p, False)   ->   %x
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool isDropout(const Node* node) {
  static const std::unordered_set<std::string> names{"aten::dropout",
                                                     "aten::dropout_",
                                                     "aten::feature_dropout",
                                                     "aten::feature_dropout_",
                                                     "aten::alpha_dropout",
                                                     "aten::alpha_dropout_",
                                                     "aten::feature_alpha_dropout",
                                                     "aten::feature_alpha_dropout_"};
  return names.count(node->kind().toQualString()) > 0;
}

bool removeDropout(PassContext& context) {
  bool changed = false;
  forEachNode(*context.graph(), [&](Node* node) {
    if (isDropout(node) && constantNumber(node->input(2)) == 0.0) {
      replaceNode(node, node->input(0));
      changed = true;
    }
  });
  return changed;
}

const RegisterPass registration{
    "remove_dropout", "Remove dropout, which does nothing in eval mode.", removeDropout, {"inlined"}};

} // namespace
} // namespace jit_passes
