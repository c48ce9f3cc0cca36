// Name the axes that a reshape joins or splits, instead of sizes that the model computes.
//
//   %n, %c, %h, %w = aten::size(%x)
//   %y = aten::reshape(%x, [%n, 2, %c // 2, %h, %w])   ->   %y = aten::unflatten(%x, 1, [2, -1])
//   %z = aten::reshape(%x, [%n, -1])                   ->   %z = aten::flatten(%x, 1, -1)
//
// Sizes in front and behind are those of the operand, so what is left of both has as many elements. One axis that
// is left of the result joins those of the operand; one that is left of the operand is split. Only tensors without
// elements could have been given other sizes. Convolutions and pools are taken to have a batch axis, and linear layers
// as many axes as the sizes in front say. Where a size behind these is open, it need not be so:
//
//   %y = aten::linear(%x, ...)
//   %z = aten::reshape(%y, [%n, %t, -1, 16])           ->   aten::unflatten(aten::flatten(%y, 2, -1), 2, [-1, 16])
//
// Where axes behind come to what a linear layer reads of the result, they are joined: the one that is left of either side
// has as many elements then, whatever the graph knows of them.
//
//   %y = aten::reshape(%x, [%n, %t, %c]), of [%n, 16, 4, 8], read by a layer of 32 features   ->   aten::flatten(%x, 2, -1)
//
// A reshape to constants says all that there is to know, and stays. Sizes that nobody reads any more told the ranks of
// tensors: these stay in their types.
#include "core/graph.h"
#include "core/registry.h"
#include "core/shapes.h"

namespace jit_passes {
namespace {

// flatten(axis, argument) or unflatten(axis, argument).
struct Step {
  c10::Symbol kind;
  int64_t axis;
  c10::IValue argument;
};

// A reshape, and what it is.
struct NamedAxes {
  Node* node;
  std::vector<Step> steps;
};

// A linear layer's features that are split, where only the sizes of the other axes tell how many these are.
std::optional<NamedAxes> splitFeatures(const Shapes& shapes, Node* node, const std::vector<Extent>& sizes) {
  const Node* linear = node->input(0)->node();
  const Extent features = shapes.ofAxis(node->input(0), -1);
  if (linear->kind() != aten::linear || !features.isNumber()) {
    return std::nullopt;
  }
  std::vector<int64_t> parts;
  int64_t axis = sizes.size(), product = 1;
  bool open = false;
  while (axis > 0 && sizes[axis - 1].isNumber() && (sizes[axis - 1].number > 0 || !open)) {
    parts.insert(parts.begin(), sizes[--axis].number);
    open = open || parts.front() < 0;
    product *= std::abs(parts.front());
  }
  for (int64_t i = 0; i < axis; ++i) {
    if (!(sizes[i] == shapes.ofAxis(linear->input(0), i))) {
      return std::nullopt;
    }
  }
  if (axis == 0 || parts.size() < 2 || product == 0) {
    return std::nullopt;
  }
  const Step split{aten::unflatten, axis, parts};
  if (!open) { // there is no axis of size 1 in between
    return product == features.number ? std::optional(NamedAxes{node, {split}}) : std::nullopt;
  }
  // Were the last size in front the layer's own input, its features would be a multiple of both.
  const auto input = shapes.featuresRead(linear->input(0)).value_or(0);
  return input > 0 && features.number % (input * product) != 0
             ? std::optional(NamedAxes{node, {{aten::flatten, axis, -1}, split}})
             : std::nullopt;
}

// Axes that come to the features of a linear layer that reads the result, behind one axis of unknown size.
std::optional<NamedAxes> joinedFeatures(
    const Shapes& shapes, Node* node, const std::vector<Extent>& sizes, int64_t axis, int64_t rank) {
  const auto features =
      sizes.back().isNumber() ? std::optional(sizes.back().number) : shapes.featuresRead(node->output());
  if (axis + 1 != int64_t(sizes.size()) || rank <= axis + 1 || features.value_or(0) <= 0) {
    return std::nullopt;
  }
  const Extent left = shapes.ofAxis(node->input(0), axis - 1);
  if (sizes[axis - 1].isNumber() && left.isNumber() && sizes[axis - 1].number >= 0) {
    return std::nullopt; // two numbers that differ, which is an error
  }
  int64_t product = 1;
  for (int64_t i = axis; i < rank; ++i) {
    const Extent size = shapes.ofAxis(node->input(0), i);
    product *= size.isNumber() ? size.number : 0;
  }
  return product == *features ? std::optional(NamedAxes{node, {{aten::flatten, axis, -1}}}) : std::nullopt;
}

std::optional<NamedAxes> namedAxes(const Shapes& shapes, Node* node) {
  if (node->kind() != aten::reshape || isConstant(node->input(1)) || shapes.isWritten(node->output()) ||
      shapes.isWritten(node->input(0))) {
    return std::nullopt;
  }
  const Value* from = node->input(0);
  const auto sizes = shapes.sizesGiven(node->output());
  if (!sizes) {
    return std::nullopt;
  }
  const auto rank = shapes.rank(from);
  if (!rank) {
    return splitFeatures(shapes, node, *sizes);
  }
  const int64_t count = sizes->size(), axes = *rank;
  int64_t front = 0, behind = 0;
  while (front < std::min(count, axes) && (*sizes)[front] == shapes.ofAxis(from, front)) {
    ++front;
  }
  while (behind < std::min(count, axes) - front &&
         (*sizes)[count - 1 - behind] == shapes.ofAxis(from, axes - 1 - behind)) {
    ++behind;
  }
  if (front > 0 && (front + behind == count) != (front + behind == axes)) {
    --front; // axes of size 1 go into the one in front of them, or come out of it
  }
  const int64_t left = count - front - behind;
  if (left == 1 && axes > front + behind) {
    return NamedAxes{node, {{aten::flatten, front, behind == 0 ? -1 : axes - 1 - behind}}};
  }
  std::vector<int64_t> parts;
  for (int64_t i = front; i < front + left; ++i) {
    parts.push_back((*sizes)[i].isNumber() ? (*sizes)[i].number : -1);
  }
  // One of them follows from the others.
  if (left > 1 && axes == front + behind + 1 && std::count(parts.begin(), parts.end(), -1) <= 1 &&
      std::count(parts.begin(), parts.end(), 0) == 0) {
    return NamedAxes{node, {{aten::unflatten, front, parts}}};
  }
  return joinedFeatures(shapes, node, *sizes, front + 1, axes);
}

// Returns whether its type did not know.
bool keepRank(Value* tensor, const std::optional<int64_t>& rank) {
  const auto type = tensor->type()->cast<c10::TensorType>();
  const bool is_news = type && rank && !type->dim();
  if (is_news) {
    tensor->setType(type->withDim(*rank));
  }
  return is_news;
}

bool canonicalizeReshape(PassContext& context) {
  const auto graph = context.graph();
  const Shapes shapes(context);
  bool changed = false;
  std::vector<NamedAxes> found; // all of them before the first is replaced, whose sizes others go by
  forEachNode(*graph, [&](Node* node) {
    if (auto named = namedAxes(shapes, node)) {
      found.push_back(std::move(*named));
      keepRank(node->output(), shapes.rank(node->output()));
    } else if (node->kind() == aten::size) {
      changed |= keepRank(node->input(0), shapes.rank(node->input(0)));
    }
  });
  for (const auto& [node, steps] : found) {
    Value* value = node->input(0);
    for (const auto& [kind, axis, argument] : steps) {
      const std::vector<Value*> operands{value, insertConstant(node, axis), insertConstant(node, argument)};
      value = insertValue(node, kind, operands, node);
    }
    value->setType(node->output()->type());
    replaceNode(node, value);
  }
  return changed || !found.empty();
}

const RegisterPass canonicalize_reshape_pass{
    "canonicalize_reshape", "Name the axes that a reshape joins or splits, instead of computed sizes.",
    canonicalizeReshape, needs("inlined")};

} // namespace
} // namespace jit_passes
