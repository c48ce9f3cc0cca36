// Apply a linear layer to its operand without reshapes, where a model joins the leading axes before the layer and
// splits them after it.
//
//   %n, %t = aten::size(%x)
//   %r = aten::flatten(%x, 0, 1)
//   %y = aten::linear(%r, %weight, %bias)              ->   %z = aten::linear(%x, %weight, %bias)
//   %z = aten::reshape(%y, [%n, %t, features])
//
// GPT-2 and PyTorch's attention have their layers in this form. Where keys come from another tensor, the graph does
// not know that both have the same batch. But the number of elements does not change, so if all sizes but one are
// equal, the last one is equal too.
//
// Convolutions and pools take data without a batch axis too, so this must hold with that axis and without.
//
// No other node may read the rows that the layer gives, and its weight must be a matrix: with a vector, the result
// of the layer has one axis less.
#include "facts/given_sizes.h"
#include "facts/shapes.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

// The value that is flattened to the rows that a linear layer reads.
const Value* flattenedRows(const Shapes& shapes, const Node* linear) {
  const Node* flatten = inputOf(linear, "input")->node();
  if (flatten->kind() != aten::flatten || constantNumber(flatten, "start_dim") != 0.0) {
    return nullptr;
  }
  const auto rank = shapes.rank(inputOf(flatten, "self"));
  const auto last = constantNumber(flatten, "end_dim");
  const bool all = rank && *rank > 2 && last && (*last == -2.0 || *last == static_cast<double>(*rank - 2));
  return all && !shapes.isWritten(inputOf(flatten, "self")) && !shapes.isWritten(flatten->output())
             ? inputOf(flatten, "self")
             : nullptr;
}

// Readers whose results have uses. Sizes that have become numbers still have readers without uses.
int64_t countReaders(const Value* value) {
  return std::ranges::count_if(value->uses(), [](const Use& use) {
    return use.user->kind() != aten::size || use.user->output()->hasUses();
  });
}

// For a node that splits the rows of a layer into the joined axes: the number of sizes that are known to be equal
// only because all others are.
std::optional<size_t> readsRows(const Shapes& shapes, const Node* node) {
  const Node* linear = node->kind() == aten::reshape ? inputOf(node, "self")->node() : nullptr;
  if (linear == nullptr || linear->kind() != aten::linear || countReaders(linear->output()) != 1 ||
      linear->owningBlock() != node->owningBlock() || shapes.isWritten(linear->output()) ||
      shapes.isWritten(node->output()) || shapes.weightRank(linear) != 2) {
    return std::nullopt;
  }
  const Value* from = flattenedRows(shapes, linear);
  const auto sizes = from != nullptr ? sizesGiven(node->output(), shapes) : std::nullopt;
  if (!sizes || static_cast<int64_t>(sizes->size()) != shapes.rank(from)) {
    return std::nullopt;
  }
  size_t others = 0; // sizes that are not known to be equal
  for (size_t axis = 0; axis + 1 < sizes->size(); ++axis) {
    others += (*sizes)[axis] != shapes.ofAxis(from, static_cast<int64_t>(axis));
  }
  const bool all = sizes->back() == shapes.ofAxis(linear->output(), -1);
  const bool same = all ? others <= 1 : sizes->back().isOpen() && others == 0;
  return same ? std::optional(others) : std::nullopt;
}

// Whether it splits the rows with a batch axis of convolutions and pools, and without. If all sizes are sizes of
// axes with a batch axis, they tell that there is one.
bool readsRowsInEitherCase(
    const Shapes& batched, const Shapes& single, const Shapes& certain, const Node* node) {
  const auto others = readsRows(batched, node);
  return others && (*others == 0 || readsRows(certain, node) || readsRows(single, node));
}

bool keepLeadingAxes(PassContext& context) {
  const Shapes batched(context), single(context, Images::Single), certain(context, Images::Unknown);
  std::vector<Node*> found; // all of them before the first edit
  forEachNode(*context.graph(), [&](Node* node) {
    if (readsRowsInEitherCase(batched, single, certain, node)) {
      found.push_back(node);
    }
  });
  for (Node* node : found) {
    Node* linear = inputOf(node, "self")->node();
    Node* flatten = inputOf(linear, "input")->node();
    linear->replaceInput(0, inputOf(flatten, "self")); // read anew: an earlier edit may have replaced it
    linear->output()->setType(node->output()->type());
    replaceNode(node, linear->output());
    if (!flatten->output()->hasUses()) {
      flatten->destroy();
    }
  }
  return !found.empty();
}

const RegisterPass keep_leading_axes_pass{
    "keep_leading_axes",
    "Let linear layers go over all axes that a model joins in front of them and splits behind.",
    keepLeadingAxes, needs("inlined")};

} // namespace
} // namespace jit_passes
