#include "sizes.h"

#include "x86/program/orders.h"

namespace jit_passes::x86 {

Sizes broadcast(const Operator& op, const Sizes& a, const Sizes& b) {
  Sizes sizes = a.size() < b.size() ? b : a;
  const Sizes& other = a.size() < b.size() ? a : b;
  for (size_t i = 1; i <= other.size(); ++i) {
    int64_t& size = sizes[sizes.size() - i];
    const int64_t with = other[other.size() - i];
    require(
        op, size == with || size == 1 || with == 1, "got the shapes ", a, " and ", b,
        ", which do not broadcast");
    size = size == 1 ? with : size;
  }
  return sizes;
}

Sizes sizesOfAll(const Operands& operands) {
  Sizes sizes = operands.first();
  for (size_t i = 1; i < operands.sizes.size(); ++i) {
    sizes = broadcast(operands.op, sizes, operands[i]);
  }
  return sizes;
}

int64_t mostAxesOfAny(const Operator& /*op*/, int64_t /*first*/, int64_t most) { return most; }

int64_t asManyAxes(const Operator& op, int64_t /*first*/, int64_t /*most*/) { return op.attributes.size(); }

size_t spatialAxis(const Operands& operands, int64_t spatial) {
  const Sizes& first = operands.first();
  const int64_t rank = first.size();
  require(
      operands.op, rank == spatial + 1 || rank == spatial + 2, "takes ", spatial + 1, " or ", spatial + 2,
      " axes, and got the shape ", first);
  for (int64_t axis = rank - spatial - 1; axis < rank; ++axis) {
    require(
        operands.op, first[axis] > 0, "takes no empty axes but the batch axis, and got the shape ", first);
  }
  return rank - spatial;
}

const Sizes& firstShaped(const Operands& operands) {
  const auto found =
      std::ranges::find_if(operands.sizes, [](const Sizes* sizes) { return !isJoinedWithAny(*sizes); });
  return found == operands.sizes.end() ? operands.first() : **found;
}

Sizes joined(const Operands& operands, int64_t along) {
  const Sizes& of = firstShaped(operands);
  const int64_t rank = of.size(), axis = checkAxis(operands.op, along, rank, of);
  Sizes sizes = of;
  sizes[axis] = 0;
  for (const Sizes* operand : operands.sizes) {
    if (isJoinedWithAny(*operand)) {
      continue;
    }
    bool fits = int64_t(operand->size()) == rank;
    for (int64_t i = 0; fits && i < rank; ++i) {
      fits = i == axis || (*operand)[i] == of[i];
    }
    require(operands.op, fits, "got the shapes ", of, " and ", *operand);
    sizes[axis] += (*operand)[axis];
  }
  return sizes;
}

Sizes orderOfFirst(
    const Operator& op, const std::vector<Sizes>& orders, const std::vector<Sizes>& /*sizes*/) {
  return orders[op.inputs[0]];
}

Sizes orderOfLargest(const Operator& op, const std::vector<Sizes>& orders, const std::vector<Sizes>& sizes) {
  for (const int64_t input : op.inputs) {
    if (sizes[input] == sizes[op.output]) {
      return orders[input];
    }
  }
  return contiguousOrder(sizes[op.output].size());
}

} // namespace jit_passes::x86
