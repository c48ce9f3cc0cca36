#include "sizes_of_results.h"

#include "einsum.h"
#include "graph/operators.h"
#include "shape_facts.h"

namespace jit_passes {
namespace {

// Larger than the end of any slice.
constexpr int64_t kFar = std::numeric_limits<int64_t>::max();

// The number of an axis, counted as `like` is: from the first, or from the last.
std::optional<int64_t> axisLike(int64_t like, std::optional<int64_t> number, std::optional<int64_t> rank) {
  if (!number || (*number < 0) == (like < 0)) {
    return number;
  }
  const auto other = rank ? std::optional(*number < 0 ? *number + *rank : *number - *rank) : std::nullopt;
  return other && (*other < 0) == (like < 0) ? other : std::nullopt;
}

std::optional<int64_t> axisIn(const Value* value, std::optional<int64_t> rank, int64_t like) {
  return axisLike(like, wholeNumber(value), rank);
}

// The axis of a tensor that is behind, or in front of, an axis `gone` in the result.
int64_t beside(int64_t gone, int64_t axis) {
  return axis < 0 ? axis - (axis <= gone) : axis + (axis >= gone);
}

// The size of an axis of two operands that broadcast: both have this size, or one of them has size 1.
Extent broadcast(const Extent& a, const Extent& b, const Extent& otherwise) {
  const auto is_one = [](const Extent& extent) { return extent.number() == 1; };
  const auto is_more = [](const Extent& extent) { return extent.number().value_or(0) > 1; };
  return a == b || is_one(a) || is_more(b) ? b : is_one(b) || is_more(a) ? a : otherwise;
}

// The size of an axis of the result to which the first `count` operands broadcast.
Size broadcast(const Value* result, int64_t axis, int64_t rank, size_t count, const SizeFacts& shapes) {
  Size size;
  for (const Value* operand : result->node()->inputs().slice(0, count)) {
    const auto own = shapes.rank(operand);
    if (!own) {
      return std::nullopt;
    }
    const int64_t behind = axis - rank; // below 0
    const Extent next = *own + behind < 0 ? Extent::ofNumber(1) : shapes.ofAxis(operand, behind);
    size = size ? broadcast(*size, next, Extent::ofAxis(result, axis)) : next;
  }
  return size;
}

} // namespace

Size sizeOfOperand(const Value* result, int64_t axis, const SizeFacts& shapes) {
  return shapes.ofAxis(mainOperand(result->node()), axis);
}

Size sizeOfTransposed(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const Node* node = result->node();
  const auto own = shapes.rank(result);
  const auto a = axisIn(inputOf(node, "dim0"), own, axis), b = axisIn(inputOf(node, "dim1"), own, axis);
  return a && b ? sizeOfOperand(result, axis == *a ? *b : axis == *b ? *a : axis, shapes) : std::nullopt;
}

Size sizeOfPermuted(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const auto axes = constantInts(result->node(), "dims");
  const bool known = axes && axis >= 0 && axis < int64_t(axes->size());
  return known ? sizeOfOperand(result, (*axes)[axis], shapes) : std::nullopt;
}

Size sizeOfUnsqueezed(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const auto made = axisIn(inputOf(result->node(), "dim"), shapes.rank(result), axis);
  if (!made || axis == *made) {
    return made ? Size(Extent::ofNumber(1)) : std::nullopt;
  }
  return sizeOfOperand(result, axis < 0 ? axis + (axis < *made) : axis - (axis > *made), shapes);
}

Size sizeOfSqueezed(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const auto gone = shapes.squeezed(result->node());
  return gone && axis >= 0 ? sizeOfOperand(result, beside(*gone, axis), shapes) : std::nullopt;
}

// For select and unbind.
Size sizeOfSelected(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const Node* node = result->node();
  const Node* taken = node->kind() == aten::select ? node : node->input()->node();
  const auto own = shapes.rank(result);
  const auto gone = axisIn(taken->input(1), own ? std::optional(*own + 1) : own, axis);
  return gone ? Size(shapes.ofAxis(mainOperand(taken), beside(*gone, axis))) : std::nullopt;
}

Size sizeOfSlice(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const Node* slice = result->node();
  const auto own = shapes.rank(result);
  const auto numberOf = [&](const Value* value, int64_t unless) -> std::optional<int64_t> {
    return isNone(value) ? unless : shapes.ofNumber(value).number();
  };
  const auto along = axisLike(axis, numberOf(inputOf(slice, "dim"), 0), own);
  if (!along) {
    return std::nullopt;
  }
  const Extent extent = shapes.ofAxis(inputOf(slice, "self"), axis);
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

// For the parts that chunk, split and unbind give.
Size sizeOfPart(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const Node *unpacked = result->node(), *list = unpacked->input()->node();
  if (list->kind() == aten::unbind) {
    return sizeOfSelected(result, axis, shapes);
  }
  const bool cuts = list->inputs().size() == 3 && movesData(list);
  const auto along = cuts ? axisIn(inputOf(list, "dim"), shapes.rank(result), axis) : std::nullopt;
  if (!along) {
    return std::nullopt;
  }
  const Extent extent = shapes.ofAxis(inputOf(list, "self"), axis);
  const auto whole = extent.number();
  if (axis != *along || !whole) {
    return axis != *along ? Size(extent) : std::nullopt;
  }
  const int64_t parts = unpacked->outputs().size();
  const bool equal = list->kind() == aten::chunk || wholeNumber(list->input(1)).value_or(0) * parts == *whole;
  return equal && *whole % parts == 0 ? Size(Extent::ofNumber(*whole / parts)) : std::nullopt;
}

// All operands have equal sizes along the other axes. An operand with one axis tells nothing: it may be empty, of
// shape [0], which goes with any operand. Traces have such a constant for a cache that is empty at first.
Size sizeOfConcatenated(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const Node* cat = result->node();
  const Node* list = inputOf(cat, "tensors")->node();
  const auto along = axisIn(inputOf(cat, "dim"), shapes.rank(result), axis);
  if (!along || axis < 0 || list->kind() != prim::ListConstruct ||
      shapes.isWritten(inputOf(cat, "tensors"))) {
    return std::nullopt;
  }
  std::vector<Extent> sizes;
  for (const Value* element : list->inputs()) {
    const auto constant = constantTensor(element);
    if (constant && constant->dim() == 1 && constant->numel() == 0) {
      continue;
    }
    if (shapes.rank(element) == 1) {
      return std::nullopt;
    }
    sizes.push_back(shapes.ofAxis(element, axis));
  }
  if (sizes.size() < 2 || axis != *along) {
    return sizes.empty() ? std::nullopt : Size(sizes.front());
  }
  const bool known = std::ranges::all_of(sizes, &Extent::isNumber);
  const auto add = [](int64_t sum, const Extent& own) { return sum + own.number().value_or(0); };
  const int64_t whole = std::accumulate(sizes.begin(), sizes.end(), int64_t{0}, add);
  return known ? Size(Extent::ofNumber(whole)) : std::nullopt;
}

// For linear layers, convolutions, pools and resizes. A vector as weight of a linear layer gives a result without
// channels. If the rank of a linear layer's result is not known, only for an axis that cannot be the last one, or that
// counts from the last one.
Size sizeOfLayer(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const Node* node = result->node();
  const auto weighted = weightedOperator(node);
  const Value* weight = weighted ? inputOf(node, "weight") : nullptr;
  const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node);
  const auto own = shapes.rank(result);
  // 0 if it is not known, or if the operator is no linear layer.
  const int64_t rank = weight != nullptr && spatial == 0 ? shapes.weightRank(node).value_or(0) : 0;
  if (!own && axis >= 0) {
    return rank == 2 && axis < shapes.leastRank(result) - 1 ? sizeOfOperand(result, axis, shapes)
                                                            : std::nullopt;
  }
  const int64_t behind = axis < 0 ? axis : axis - *own, channels = -1 - spatial;
  if (!own && weight != nullptr && spatial == 0 && rank != 2) {
    return std::nullopt;
  }
  if (behind < channels || (behind == channels && (!weighted || rank == 1))) {
    return sizeOfOperand(result, axis, shapes);
  }
  const bool counts = behind == channels && weighted && !weighted->transposed;
  const auto size = counts ? shapes.ofAxis(weight, 0).number() : std::nullopt;
  return size ? Size(Extent::ofNumber(*size)) : std::nullopt;
}

Size sizeOfEmbedded(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const Node* node = result->node();
  const auto own = shapes.rank(result);
  if (axis < (axis < 0 ? 0 : own.value_or(shapes.leastRank(result))) - 1) {
    return shapes.ofAxis(inputOf(node, "indices"), axis < 0 ? axis + 1 : axis);
  }
  const auto size = own || axis == -1 ? shapes.ofAxis(inputOf(node, "weight"), 1).number() : std::nullopt;
  return size ? Size(Extent::ofNumber(*size)) : std::nullopt;
}

// For matrix products and attention, except for a product with a vector, whose result has an axis less.
Size sizeOfProduct(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const Node* node = result->node();
  const auto own = shapes.rank(result);
  if (!own && axis >= 0) {
    return std::nullopt;
  }
  const int64_t behind = own ? axis - *own : axis; // below 0
  const Value *left = node->input(0), *right = node->input(isAttention(node) ? 2 : 1);
  if (node->kind() == aten::matmul && std::min(shapes.leastRank(left), shapes.leastRank(right)) < 2) {
    return std::nullopt;
  }
  if (behind >= -2) {
    return shapes.ofAxis(behind == -2 ? left : right, behind);
  }
  const Value* grouped = isAttention(node) ? operandOf(node, "enable_gqa") : nullptr;
  if (grouped != nullptr && behind == -3 && constantNumber(grouped) != 0.0) {
    return shapes.ofAxis(left, behind); // heads of the query share heads of keys
  }
  return own ? broadcast(result, axis, *own, isAttention(node) ? 3 : 2, shapes) : std::nullopt;
}

// If the rank is not known, only for an axis that one operand alone has, or that counts from the last one. The size
// of such an axis is known if one operand has a size above 1, or if both have it.
Size sizeOfBroadcast(const Value* result, int64_t axis, const SizeFacts& shapes) {
  if (const auto own = shapes.rank(result)) {
    return broadcast(result, axis, *own, 2, shapes);
  }
  if (axis < 0) {
    const Node* node = result->node();
    return broadcast(
        shapes.ofAxis(node->input(0), axis), shapes.ofAxis(node->input(1), axis),
        Extent::ofAxis(result, axis));
  }
  for (const size_t operand : {0, 1}) {
    const Value *whole = result->node()->input(operand), *other = result->node()->input(1 - operand);
    const auto own = shapes.rank(other); // the other operand has the last axes only
    if ((own && axis < shapes.leastRank(result) - *own) || shapes.isReducedOf(other, whole)) {
      return shapes.ofAxis(whole, axis);
    }
  }
  return std::nullopt;
}

Size sizeOfEinsum(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const auto labels = einsumLabels(result->node());
  if (axis < 0 || axis >= int64_t(labels->result.size())) {
    return std::nullopt;
  }
  const auto operands = inputOf(result->node(), "tensors")->node()->inputs();
  const auto sizeIn = [&](size_t operand) {
    const size_t own = (operand == 0 ? labels->a : labels->b).find(labels->result[axis]);
    return own == std::string::npos ? Extent::ofNumber(1) : shapes.ofAxis(operands[operand], int64_t(own));
  };
  return broadcast(sizeIn(0), sizeIn(1), Extent::ofAxis(result, axis));
}

Size sizeOfCount(const Value* result, int64_t /*axis*/, const SizeFacts& shapes) {
  const Node* node = result->node();
  const Extent end = shapes.ofNumber(node->input(node->inputs().size() - 5));
  const Value* integer = end.integer();
  const bool known =
      integer != nullptr ? integer->type()->kind() == c10::TypeKind::IntType : end.number().value_or(0) >= 0;
  return known ? Size(end) : std::nullopt;
}

Size sizeOfMade(const Value* result, int64_t axis, const SizeFacts& shapes) {
  const auto sizes = shapes.ofList(sizesMade(result->node()));
  return sizes && axis >= 0 && axis < int64_t(sizes->size()) ? Size((*sizes)[axis]) : std::nullopt;
}

// For the results of all steps of a recurrent layer. Its states have other axes.
Size sizeOfSteps(const Value* result, int64_t axis, const SizeFacts& shapes) {
  return result->offset() == 0 && axis >= 0 && axis < 2 ? sizeOfOperand(result, axis, shapes) : std::nullopt;
}

// For expand_as and its like.
Size sizeOfOther(const Value* result, int64_t axis, const SizeFacts& shapes) {
  return shapes.ofAxis(inputOf(result->node(), "other"), axis);
}

} // namespace jit_passes
