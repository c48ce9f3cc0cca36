#include "given_sizes.h"

#include "shape_facts.h"

namespace jit_passes {
namespace {

// The first axis that flatten or unflatten changes, and the number of axes there: `first` in the operand, `second` in
// the result.
struct Split {
  int64_t axis, first, second;
};

std::optional<Split> splitBy(const Node* node, const SizeFacts& shapes) {
  if (node->kind() != aten::flatten && node->kind() != aten::unflatten) {
    return std::nullopt;
  }
  const auto one = constantOf(node->input(1)), two = constantOf(node->input(2));
  const auto parts = node->kind() == aten::unflatten ? shapes.ofList(inputOf(node, "sizes")) : std::nullopt;
  if (!one || !one->isInt() || (!parts && (!two || !two->isInt()))) {
    return std::nullopt;
  }
  const auto own = shapes.rank(inputOf(node, "self"));
  if (own == 0) { // flatten gives a tensor without axes one axis
    return std::nullopt;
  }
  const int64_t first = one->toInt() < 0 && own ? one->toInt() + *own : one->toInt();
  if (first < 0) {
    return std::nullopt;
  }
  if (node->kind() == aten::unflatten) {
    return parts ? std::optional(Split{first, 1, int64_t(parts->size())}) : std::nullopt;
  }
  const int64_t last = two->toInt() < 0 && own ? two->toInt() + *own : two->toInt();
  if (last == -1) {
    return Split{first, 1, 1}; // up to the last axis, so no axis comes after it
  }
  return last >= 0 ? std::optional(Split{first, last - first + 1, 1}) : std::nullopt;
}

// The quotient of a size that flatten has joined and `others`. Nothing if the quotient is no axis of flatten's
// operand.
Size ofRest(const Extent& whole, int64_t others, const SizeFacts& shapes) {
  const auto* joined = whole.axis();
  const Node* flatten = joined != nullptr ? joined->tensor->node() : nullptr;
  const bool counted = flatten && flatten->kind() == aten::flatten && shapes.rank(inputOf(flatten, "self"));
  const auto change = counted ? splitBy(flatten, shapes) : std::nullopt;
  if (!change || change->axis != joined->axis) {
    return std::nullopt;
  }
  Size unknown;
  int64_t product = 1;
  for (int64_t axis = change->axis; axis < change->axis + change->first; ++axis) {
    const Extent own = shapes.ofAxis(inputOf(flatten, "self"), axis);
    if (!own.isNumber() && unknown) {
      return std::nullopt;
    }
    product *= own.number().value_or(1);
    unknown = own.isNumber() ? unknown : own;
  }
  if (unknown) {
    return product == others ? unknown : std::nullopt;
  }
  return product % others == 0 ? Size(Extent::ofNumber(product / others)) : std::nullopt;
}

// The open size of an axis that unflatten splits: the axis's size divided by the others. Nothing if one is not
// known.
Size ofOpen(const Extent& whole, const std::vector<Extent>& sizes, const SizeFacts& shapes) {
  int64_t others = 1;
  for (const Extent& size : sizes) {
    others *= size.isOpen() ? 1 : size.number().value_or(0);
  }
  if (others <= 0) {
    return std::nullopt;
  }
  return whole.isNumber() ? Extent::ofNumber(*whole.number() / others) : ofRest(whole, others, shapes);
}

// For a result of unknown rank: an axis of unflatten, counted from the last one.
Size behindUnflatten(const Node* unflatten, int64_t axis, const SizeFacts& shapes) {
  const Value* tensor = inputOf(unflatten, "self");
  const auto dim = wholeNumber(inputOf(unflatten, "dim"));
  const auto sizes = sizesIn(inputOf(unflatten, "sizes"), shapes);
  if (!dim || *dim >= 0 || !sizes) {
    return std::nullopt;
  }
  const auto count = static_cast<int64_t>(sizes->size());
  const int64_t index = axis - *dim - 1 + count; // among the sizes
  if (index < 0 || index >= count) {
    return shapes.ofAxis(tensor, index < 0 ? axis + count - 1 : axis);
  }
  const Extent& size = (*sizes)[index];
  return size.isOpen() ? ofOpen(shapes.ofAxis(tensor, *dim), *sizes, shapes) : Size(size);
}

} // namespace

std::optional<std::vector<Extent>> sizesIn(const Value* list, const SizeFacts& shapes) {
  auto sizes = shapes.ofList(list);
  if (sizes) {
    const auto is_open = [](const Extent& size) { return size.number() == -1; };
    std::ranges::replace_if(*sizes, is_open, Extent::open());
  }
  return sizes;
}

std::optional<std::vector<Extent>> sizesGiven(const Value* tensor, const SizeFacts& shapes) {
  const Node* node = tensor->node();
  const bool splits = node->kind() == aten::unflatten, expands = node->kind() == aten::expand;
  const auto change = splits ? splitBy(node, shapes) : std::nullopt;
  const Value* list = splits && !change ? nullptr : sizesTaken(node);
  auto sizes = list != nullptr ? sizesIn(list, shapes) : std::nullopt;
  if (!sizes || (!expands && std::ranges::count(*sizes, Extent::open()) > 0)) {
    return sizes; // one size is open already, so no integer can be -1: two open sizes are an error
  }
  std::vector<size_t> unsure;
  for (size_t i = 0; i < sizes->size(); ++i) {
    const Value* integer = (*sizes)[i].integer();
    if (integer != nullptr && !shapes.isNotNegative(integer)) {
      unsure.push_back(i);
    }
  }
  for (const size_t i : unsure) { // a single unsure size follows from the others, whether it is -1 or not
    const int64_t axis = static_cast<int64_t>(i) + (splits ? change->axis : 0);
    (*sizes)[i] = !expands && unsure.size() == 1 ? Extent::open() : Extent::ofAxis(tensor, axis);
  }
  return sizes;
}

// The size of the axis from the list of sizes, or from the axes that flatten joins and unflatten splits.
Size sizeOfReshaped(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const Node* node = result->node();
  const bool splits = node->kind() == aten::unflatten;
  const Value* tensor = mainOperand(node);
  if (axis < 0) {
    return splits ? behindUnflatten(node, axis, shapes) : std::nullopt;
  }
  const auto sizes = sizesGiven(result, shapes);
  const auto change = splitBy(node, shapes);
  const int64_t index = splits && change ? axis - change->axis : axis;
  if (sizes && index >= 0 && index < int64_t(sizes->size())) {
    if (!(*sizes)[index].isOpen()) {
      return (*sizes)[index];
    }
    if (splits) {
      return ofOpen(shapes.ofAxis(tensor, change->axis), *sizes, shapes);
    }
    const auto own = node->kind() == aten::expand ? shapes.rank(tensor) : std::nullopt;
    const int64_t more = int64_t(sizes->size()) - own.value_or(0);
    return own && axis >= more ? Size(shapes.ofAxis(tensor, axis - more)) : std::nullopt;
  }
  if (change && (axis < change->axis || axis >= change->axis + change->second)) {
    const int64_t moved = axis < change->axis ? 0 : change->first - change->second;
    return shapes.ofAxis(tensor, axis + moved);
  }
  return change ? ofRest(Extent::ofAxis(result, axis), 1, shapes) : std::nullopt;
}

} // namespace jit_passes
