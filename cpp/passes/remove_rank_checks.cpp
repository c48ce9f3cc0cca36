// Remove what scripted batch norms check of a convolution's result: that it has a batch axis.
//
//   %n : int = aten::dim(%y)           of a conv2d
//   %b : bool = aten::ne(%n, 4)
//    = prim::If(%b)
//     block0(): prim::RaiseException(...)
//
// The check fails for inputs without a batch axis only; these then get a result instead of the
// error. Any other question for the rank stays.
#include "core/operators.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool onlyRaises(const Block* block) {
  bool raises = false;
  for (const Node* node : block->nodes()) {
    raises |= node->kind() == c10::prim::RaiseException;
    if (!node->blocks().empty()) {
      return false;
    }
  }
  return raises;
}

bool hasNoNodes(const Block* block) { return block->nodes().begin() == block->nodes().end(); }

bool isRankCheck(const Node* node) {
  if (node->kind() != c10::prim::If || !node->outputs().empty() || !onlyRaises(node->blocks().at(0)) ||
      !hasNoNodes(node->blocks().at(1))) {
    return false;
  }
  const Node* differs = node->input()->node();
  if (differs->kind() != c10::aten::ne || differs->input(0)->node()->kind() != c10::aten::dim) {
    return false;
  }
  const auto op = weightedOperator(differs->input(0)->node()->input()->node());
  return op && op->spatial_dims > 0 && constantNumber(differs->input(1)) == op->spatial_dims + 2;
}

bool removeRankChecks(PassContext& context) {
  return changeNodes(*context.graph(), [](Node* node) {
    const bool checks = isRankCheck(node);
    if (checks) {
      node->destroy();
    }
    return checks;
  });
}

const RegisterPass remove_rank_checks_pass{
    "remove_rank_checks",
    "Remove checks that a convolution's result has a batch axis.",
    removeRankChecks,
    {"inlined"}};

} // namespace
} // namespace jit_passes
