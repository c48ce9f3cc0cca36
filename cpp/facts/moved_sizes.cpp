// Sizes of what only moves axes, or takes parts of them.
#include "graph/operators.h"
#include "shape_facts.h"
#include "shapes.h"

namespace jit_passes {
namespace {

// Beyond all ends of slices.
constexpr int64_t kFar = std::numeric_limits<int64_t>::max();

// The axis that a constant names, counted from the first.
std::optional<int64_t> axisIn(const Value* value, std::optional<int64_t> rank) {
  const auto number = wholeNumber(value);
  const auto axis = number && *number < 0 && rank ? std::optional(*number + *rank) : number;
  return axis && *axis >= 0 ? axis : std::nullopt;
}

} // namespace

// Of what only moves axes.
std::optional<Extent> Shapes::ofMoved(const Value* tensor, int64_t axis) const {
  const Node* node = tensor->node();
  const auto own = rank(tensor);
  if (node->kind() == aten::transpose) {
    const auto a = axisIn(inputOf(node, "dim0"), own), b = axisIn(inputOf(node, "dim1"), own);
    return a && b ? std::optional(ofAxis(
                        inputOf(node, "self"), axis == *a   ? *b
                                               : axis == *b ? *a
                                                            : axis))
                  : std::nullopt;
  }
  if (node->kind() == aten::permute) {
    const auto axes = constantInts(node, "dims");
    return axes && axis < int64_t(axes->size()) ? std::optional(ofAxis(inputOf(node, "self"), (*axes)[axis]))
                                                : std::nullopt;
  }
  if (node->kind() == aten::unsqueeze) {
    const auto made = axisIn(inputOf(node, "dim"), own);
    return !made           ? std::nullopt
           : axis == *made ? std::optional(Extent::ofNumber(1))
                           : std::optional(ofAxis(inputOf(node, "self"), axis - (axis > *made)));
  }
  if (const auto gone = squeezed(node)) {
    return ofAxis(inputOf(node, "self"), axis + (axis >= *gone));
  }
  if (node->kind() == aten::cat) {
    return ofConcatenated(node, axis, axisIn(inputOf(node, "dim"), own));
  }
  if (node->kind() == aten::slice && isTensor(tensor)) {
    return ofSlice(node, axis, own);
  }
  if (node->kind() == aten::select || isUnbound(node)) {
    const Node* taken = node->kind() == aten::select ? node : node->input()->node();
    const auto gone = axisIn(taken->input(1), own ? std::optional(*own + 1) : own);
    return gone ? std::optional(ofAxis(mainOperand(taken), axis + (axis >= *gone))) : std::nullopt;
  }
  return node->kind() == prim::ListUnpack ? ofPart(node, axis, own) : std::nullopt;
}

// Of what chunk, split and the like give.
std::optional<Extent> Shapes::ofPart(const Node* unpacked, int64_t axis, std::optional<int64_t> own) const {
  const Node* list = unpacked->input()->node();
  const bool cuts = list->inputs().size() == 3 && movesData(list);
  const auto along = cuts ? axisIn(inputOf(list, "dim"), own) : std::nullopt;
  if (!along) {
    return std::nullopt;
  }
  const Extent extent = ofAxis(inputOf(list, "self"), axis);
  const auto whole = extent.number();
  if (axis != *along || !whole) {
    return axis != *along ? std::optional(extent) : std::nullopt;
  }
  const int64_t parts = unpacked->outputs().size();
  const bool equal = list->kind() == aten::chunk || wholeNumber(list->input(1)).value_or(0) * parts == *whole;
  return equal && *whole % parts == 0 ? std::optional(Extent::ofNumber(*whole / parts)) : std::nullopt;
}

// Along all other axes, its operands have one size, but for those of one axis: of no numbers, these go with any others.
// Traces have such a constant for a cache that is empty at first.
std::optional<Extent> Shapes::ofConcatenated(
    const Node* cat, int64_t axis, std::optional<int64_t> along) const {
  const Node* list = inputOf(cat, "tensors")->node();
  if (!along || list->kind() != prim::ListConstruct || isWritten(inputOf(cat, "tensors"))) {
    return std::nullopt;
  }
  std::vector<Extent> sizes;
  for (const Value* element : list->inputs()) {
    const auto constant = constantTensor(element);
    if (constant && constant->dim() == 1 && constant->numel() == 0) {
      continue;
    }
    if (rank(element) == 1) {
      return std::nullopt;
    }
    sizes.push_back(ofAxis(element, axis));
  }
  if (sizes.empty()) {
    return std::nullopt;
  }
  if (axis != *along || sizes.size() == 1) {
    return sizes.front();
  }
  int64_t whole = 0;
  for (const Extent& own : sizes) {
    if (!own.isNumber()) {
      return std::nullopt;
    }
    whole += *own.number();
  }
  return Extent::ofNumber(whole);
}

std::optional<Extent> Shapes::ofSlice(const Node* slice, int64_t axis, std::optional<int64_t> own) const {
  const auto numberOf = [&](const Value* value, int64_t unless) -> std::optional<int64_t> {
    return isNone(value) ? unless : ofNumber(value).number();
  };
  const auto given = numberOf(inputOf(slice, "dim"), 0);
  const auto along = given && *given < 0 && own ? std::optional(*given + *own) : given;
  if (!along || *along < 0) {
    return std::nullopt;
  }
  const Extent extent = ofAxis(inputOf(slice, "self"), axis);
  const auto start = numberOf(inputOf(slice, "start"), 0), end = numberOf(inputOf(slice, "end"), kFar);
  const auto step = numberOf(inputOf(slice, "step"), 1);
  if (axis != *along || (start == 0 && end == kFar && step == 1)) {
    return extent;
  }
  const auto whole = extent.number();
  if (!start || !end || step != 1 || !whole) {
    return std::nullopt;
  }
  const auto within = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + *whole : at, 0, *whole); };
  return Extent::ofNumber(std::max<int64_t>(within(*end) - within(*start), 0));
}

} // namespace jit_passes
