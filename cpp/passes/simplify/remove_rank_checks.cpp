// Remove the check of scripted batch norms that the result of a convolution, or a tensor of equal rank, has a batch
// axis.
//
//   %n : int = aten::dim(%y)           of a conv2d, or a cat of its result
//   %b : bool = aten::ne(%n, 4)
//    = prim::If(%b)
//     block0(): prim::RaiseException(...)
//
// The check fails only for inputs without a batch axis, which then give a result instead of the error. Also remove
// checks of scripted one-dimensional batch norms and adaptive pools that a convolution's result always passes:
//
//   %n : int = aten::dim(%y)           of a conv1d
//   %b : bool = aten::ne(%n, 2)
//   %c : bool = prim::If(%b)
//     block0(): -> (aten::ne(aten::dim(%y), 3))
//     block1(): -> (False)
//    = prim::If(%c)
//     block0(): prim::RaiseException(...)
//
//   %n : int = aten::len(aten::size(%y))
//   %b : bool = aten::gt(%n, 2)
//    = prim::If(%b)
//     block1(): prim::RaiseException(...)
//
// Any other question for the rank stays.
#include "graph/operators.h"
#include "simplify.h"

namespace jit_passes {
namespace {

bool onlyRaises(const Block* block) {
  bool raises = false;
  for (const Node* node : block->nodes()) {
    raises |= node->kind() == prim::RaiseException;
    if (!node->blocks().empty()) {
      return false;
    }
  }
  return raises;
}

bool hasNoNodes(const Block* block) { return block->nodes().begin() == block->nodes().end(); }

// The convolution whose result has the rank of the value; at most its rank if `may_broadcast`.
std::optional<WeightedOperator> rankGiver(const Value* value, bool may_broadcast) {
  while (true) {
    const Node* node = value->node();
    const std::string_view name = node->kind().toQualString();
    if (const auto op = weightedOperator(node)) {
      return op->spatial_dims > 0 ? op : std::nullopt;
    }
    const bool list = node->kind() == c10::aten::cat || node->kind() == prim::ListConstruct;
    const bool elementwise =
        isElementwise(node) && (may_broadcast || std::ranges::count_if(node->inputs(), isTensor) == 1);
    const bool same = elementwise || isNormalization(node->kind()) || isDropout(node) ||
                      name.find("_pool") != std::string_view::npos;
    if ((!list && !same) || node->inputs().empty()) {
      return std::nullopt;
    }
    value = mainOperand(node);
  }
}

// The number that a tensor's rank is compared with, minus the spatial axes of the convolution that gives the tensor.
std::optional<double> comparedRank(const Value* differs) {
  const Node* node = differs->node();
  if (node->kind() != aten::ne || mainOperand(node)->node()->kind() != aten::dim) {
    return std::nullopt;
  }
  const auto op = rankGiver(mainOperand(node)->node()->input(), false);
  const auto number = op ? constantNumber(node, "b") : std::nullopt;
  return number ? std::optional(*number - op->spatial_dims) : std::nullopt;
}

// The axes besides the spatial ones are batch and channels, or channels alone.
bool isRankCheck(const Node* node) {
  if (node->kind() != prim::If || !node->outputs().empty() || !onlyRaises(node->blocks().at(0)) ||
      !hasNoNodes(node->blocks().at(1))) {
    return false;
  }
  const Node* both = node->input()->node();
  if (both->kind() != prim::If) {
    return comparedRank(node->input()) == 2;
  }
  const Value* otherwise = both->blocks().at(1)->outputs()[node->input()->offset()];
  const auto first = comparedRank(both->input());
  const auto second = comparedRank(both->blocks().at(0)->outputs()[node->input()->offset()]);
  return constantNumber(otherwise) == 0 && ((first == 1 && second == 2) || (first == 2 && second == 1));
}

bool alwaysHolds(const Node* node) {
  if (node->kind() != prim::If || !node->outputs().empty() || !hasNoNodes(node->blocks().at(0)) ||
      !onlyRaises(node->blocks().at(1))) {
    return false;
  }
  const Node* more = node->input()->node();
  const auto dims = more->kind() == c10::aten::gt ? constantNumber(more->input(1)) : std::nullopt;
  const Node* count = dims ? mainOperand(more)->node() : nullptr;
  const Node* size = count != nullptr && count->kind() == c10::aten::len ? count->input()->node() : nullptr;
  if (size == nullptr || size->kind() != c10::aten::size || size->inputs().size() != 1) {
    return false;
  }
  const auto op = rankGiver(size->input(), true);
  return op && static_cast<double>(op->spatial_dims + 1) > *dims; // a batch axis may be missing
}

} // namespace

bool removeRankChecks(PassContext& context) {
  return changeNodes(*context.graph(), [](Node* node) {
    const bool holds = isRankCheck(node) || alwaysHolds(node);
    if (holds) {
      node->destroy();
    }
    return holds;
  });
}

} // namespace jit_passes
