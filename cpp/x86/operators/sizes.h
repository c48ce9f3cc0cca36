// Sizes of results, by rules that several operators share.
#pragma once

#include "declaration.h"

namespace jit_passes::x86 {

Sizes broadcast(const Operator& op, const Sizes& a, const Sizes& b);
// Of two operands.
Sizes sizesOfBoth(const Operands& operands);
int64_t mostAxesOfAny(const Operator& op, int64_t first, int64_t most);
// Of an operator whose attributes are all axes, or sizes, of the result.
int64_t asManyAxes(const Operator& op, int64_t first, int64_t most);
// The first spatial axis of an operand with a batch or without one, whose other axes are not empty.
size_t spatialAxis(const Operands& operands, int64_t spatial);
// Operands one after the other along an axis.
Sizes joined(const Operands& operands, int64_t along);
// Of a list that is joined: the first whose shape is that of the result but for one axis.
const Sizes& firstShaped(const Operands& operands);

// Orders in memory: that of the first operand, or of the first that is as large as the result.
Sizes orderOfFirst(const Operator& op, const std::vector<Sizes>& orders, const std::vector<Sizes>& sizes);
Sizes orderOfLargest(const Operator& op, const std::vector<Sizes>& orders, const std::vector<Sizes>& sizes);

} // namespace jit_passes::x86
