// Sizes of what only moves axes, or takes parts of them.
#include "operators.h"
#include "shapes.h"

namespace jit_passes {
namespace {

// Beyond all ends of slices.
constexpr int64_t kFar = std::numeric_limits<int64_t>::max();

} // namespace

// Of what only moves axes.
std::optional<Extent> Shapes::ofMoved(const Value* tensor, int64_t axis) const {
  const Node* node = tensor->node();
  const auto numbered = [&](const Value* value, int64_t rank) {
    const auto number = integer(value);
    return number ? (*number < 0 ? *number + rank : *number) : -1;
  };
  const auto own = rank(tensor);
  if (node->kind() == aten::transpose) {
    const int64_t a = numbered(node->input(1), own.value_or(-8)),
                  b = numbered(node->input(2), own.value_or(-8));
    return a >= 0 && b >= 0 ? std::optional(ofAxis(
                                  node->input(0), axis == a   ? b
                                                  : axis == b ? a
                                                              : axis))
                            : std::nullopt;
  }
  if (node->kind() == aten::permute) {
    const auto axes = constantInts(node->input(1));
    return axes && axis < int64_t(axes->size()) ? std::optional(ofAxis(node->input(0), (*axes)[axis]))
                                                : std::nullopt;
  }
  if (node->kind() == aten::unsqueeze) {
    const int64_t made = numbered(node->input(1), own.value_or(-8));
    return made < 0       ? std::nullopt
           : axis == made ? std::optional(Extent{nullptr, 1})
                          : std::optional(ofAxis(node->input(0), axis - (axis > made)));
  }
  if (const auto gone = squeezed(node)) {
    return ofAxis(node->input(0), axis + (axis >= *gone));
  }
  if (node->kind() == aten::expand) {
    return ofExpanded(node, axis);
  }
  if (node->kind() == aten::cat) {
    return ofConcatenated(node, axis, numbered(node->input(1), own.value_or(-8)));
  }
  if (node->kind() == aten::slice && isTensor(tensor)) {
    return ofSlice(node, axis, own);
  }
  if (node->kind() == aten::select || isUnbound(node)) {
    const Node* taken = node->kind() == aten::select ? node : node->input(0)->node();
    const int64_t gone = numbered(taken->input(1), own.value_or(-8) + 1);
    return gone >= 0 ? std::optional(ofAxis(taken->input(0), axis + (axis >= gone))) : std::nullopt;
  }
  const Node* list = node->kind() == prim::ListUnpack ? node->input(0)->node() : nullptr;
  if (list && list->inputs().size() == 3 && movesData(list)) { // chunk, split and the like
    const int64_t along = numbered(list->input(2), own.value_or(-8));
    const Extent whole = along >= 0 ? ofAxis(list->input(0), axis) : Extent{tensor, axis};
    if (along >= 0 && axis != along) {
      return whole;
    }
    const int64_t parts = node->outputs().size();
    const bool equal =
        list->kind() == aten::chunk || integer(list->input(1)).value_or(0) * parts == whole.number;
    return whole.isNumber() && equal && whole.number % parts == 0
               ? std::optional(Extent{nullptr, whole.number / parts})
               : std::nullopt;
  }
  return std::nullopt;
}

// The size that is left open, of those that an axis is split into.
Extent Shapes::ofOpen(const Node* unflatten, int64_t axis) const {
  const Extent whole = ofAxis(unflatten->input(0), axis);
  int64_t others = 1;
  const auto sizes = ofList(unflatten->input(2));
  for (const Extent& size : *sizes) {
    others *= !size.isNumber() ? 0 : size.number < 0 ? 1 : size.number;
  }
  if (whole.isNumber()) {
    return others > 0 ? Extent{nullptr, whole.number / others} : Extent{unflatten->output(), -1};
  }
  const Extent apart = joinedWith(whole, others);
  return apart == whole ? Extent{unflatten->output(), -1} : apart;
}

// The rest of a size behind so many elements, where flatten joins axes to it; else the size itself.
Extent Shapes::joinedWith(const Extent& whole, int64_t others) const {
  const Node* flatten = whole.value->node();
  const bool counted = flatten->kind() == aten::flatten && rank(flatten->input(0));
  const auto change = counted ? split(flatten) : std::nullopt;
  if (!change || change->axis != whole.number) {
    return whole;
  }
  Extent open = whole;
  int64_t product = 1, count = 0;
  for (int64_t axis = change->axis; axis < change->axis + change->first; ++axis) {
    const Extent own = ofAxis(flatten->input(0), axis);
    product *= own.isNumber() ? own.number : 1;
    open = own.isNumber() ? open : own;
    count += !own.isNumber();
  }
  if (count == 0 && others > 0 && product % others == 0) {
    return {nullptr, product / others};
  }
  return count == 1 && product == others ? open : whole;
}

// Along all other axes, its operands have one size, but for those of one axis: of no numbers, these go with any others.
// Traces have such a constant for a cache that is empty at first.
std::optional<Extent> Shapes::ofConcatenated(const Node* cat, int64_t axis, int64_t along) const {
  const Node* list = cat->input(0)->node();
  if (along < 0 || list->kind() != prim::ListConstruct || isWritten(cat->input(0))) {
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
  if (axis != along || sizes.size() == 1) {
    return sizes.front();
  }
  Extent whole{nullptr, 0};
  for (const Extent& own : sizes) {
    if (!own.isNumber()) {
      return std::nullopt;
    }
    whole.number += own.number;
  }
  return whole;
}

std::optional<Extent> Shapes::ofExpanded(const Node* expand, int64_t axis) const {
  const auto sizes = ofList(expand->input(1));
  if (!sizes || axis >= int64_t(sizes->size())) {
    return std::nullopt;
  }
  const Extent given = (*sizes)[axis];
  if (!given.isNumber() || given.number != -1) {
    return given;
  }
  const auto before = rank(expand->input(0));
  const int64_t inner = before ? axis - int64_t(sizes->size()) + *before : -1;
  return inner >= 0 ? std::optional(ofAxis(expand->input(0), inner)) : std::nullopt;
}

std::optional<Extent> Shapes::ofSlice(const Node* slice, int64_t axis, std::optional<int64_t> own) const {
  const auto numberOf = [&](const Value* value, int64_t unless) -> std::optional<int64_t> {
    const Extent extent = isNone(value) ? Extent{nullptr, unless} : ofNumber(value);
    return extent.isNumber() ? std::optional(extent.number) : std::nullopt;
  };
  const auto given = numberOf(slice->input(1), 0);
  const int64_t along = !given ? -1 : *given < 0 ? *given + own.value_or(-8) : *given;
  if (along < 0) {
    return std::nullopt;
  }
  const Extent whole = ofAxis(slice->input(0), axis);
  const auto start = numberOf(slice->input(2), 0), end = numberOf(slice->input(3), kFar);
  const auto step = numberOf(slice->input(4), 1);
  if (axis != along || (start == 0 && end == kFar && step == 1)) {
    return whole;
  }
  if (!start || !end || step != 1 || !whole.isNumber()) {
    return std::nullopt;
  }
  const auto within = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + whole.number : at, 0, whole.number);
  };
  return Extent{nullptr, std::max<int64_t>(within(*end) - within(*start), 0)};
}

} // namespace jit_passes
