// Remove what scripted batch norms check of a convolution's result: that it has a batch axis.
//
//   %n : int = aten::dim(%y)           of a conv2d
//   %b : bool = aten::ne(%n, 4)
//    = prim::If(%b)
//     block0(): prim::RaiseException(...)
//
// The check fails for inputs without a batch axis only; these then get a result instead of the
// error. And what scripted adaptive pools check, which a convolution's result always is:
//
//   %n : int = aten::len(aten::size(%y))
//   %b : bool = aten::gt(%n, 2)
//    = prim::If(%b)
//     block1(): prim::RaiseException(...)
//
// Any other question for the rank stays.
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

// The convolution whose result has as many dimensions as the value, or fewer.
std::optional<WeightedOperator> convolutionBehind(const Value* value) {
  while (true) {
    const Node* node = value->node();
    const std::string_view name = node->kind().toQualString();
    if (const auto op = weightedOperator(node)) {
      return op->spatial_dims > 0 ? op : std::nullopt;
    }
    const bool list = node->kind() == c10::aten::cat || node->kind() == c10::prim::ListConstruct;
    const bool same = isElementwise(node) || isNormalization(node->kind()) || isDropout(node) ||
                      name.find("_pool") != std::string_view::npos;
    if ((!list && !same) || node->inputs().empty()) {
      return std::nullopt;
    }
    value = node->input(0);
  }
}

bool alwaysHolds(const Node* node) {
  if (node->kind() != c10::prim::If || !node->outputs().empty() || !hasNoNodes(node->blocks().at(0)) ||
      !onlyRaises(node->blocks().at(1))) {
    return false;
  }
  const Node* more = node->input()->node();
  const auto dims = more->kind() == c10::aten::gt ? constantNumber(more->input(1)) : std::nullopt;
  const Node* count = dims ? more->input(0)->node() : nullptr;
  const Node* size = count != nullptr && count->kind() == c10::aten::len ? count->input()->node() : nullptr;
  if (size == nullptr || size->kind() != c10::aten::size || size->inputs().size() != 1) {
    return false;
  }
  const auto op = convolutionBehind(size->input());
  return op && static_cast<double>(op->spatial_dims + 1) > *dims; // a batch axis may be missing
}

bool removeRankChecks(PassContext& context) {
  bool changed = false;
  forEachNode(*context.graph(), [&](Node* node) {
    if (isRankCheck(node) || alwaysHolds(node)) {
      node->destroy();
      changed = true;
    }
  });
  return changed;
}

const RegisterPass remove_rank_checks_pass{
    "remove_rank_checks",
    "Remove checks of the rank of what a convolution gives.",
    removeRankChecks,
    {"inlined"}};

} // namespace
} // namespace jit_passes
