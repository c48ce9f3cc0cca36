// Sizes of results, by rules that several operators share.
#pragma once

#include "x86/program/declaration.h"

namespace jit_passes::x86 {

Sizes broadcast(const Operator& op, const Sizes& a, const Sizes& b);
// Of operands that broadcast.
Sizes sizesOfAll(const Operands& operands);
int64_t mostAxesOfAny(const Operator& op, int64_t first, int64_t most);
// One axis for each attribute.
int64_t asManyAxes(const Operator& op, int64_t first, int64_t most);
// The first spatial axis. The operand may have a batch axis; no other axis may be empty.
size_t spatialAxis(const Operands& operands, int64_t spatial);
// Operands one after the other along an axis.
Sizes joined(const Operands& operands, int64_t along);
// The first operand of a concatenation that is not [0].
const Sizes& firstShaped(const Operands& operands);

// Orders in memory: that of the first operand, or of the first that is as large as the result.
Sizes orderOfFirst(const Operator& op, const std::vector<Sizes>& orders, const std::vector<Sizes>& sizes);
Sizes orderOfLargest(const Operator& op, const std::vector<Sizes>& orders, const std::vector<Sizes>& sizes);

} // namespace jit_passes::x86
