// Rules for sizes of results that several operators share.
#pragma once

#include "x86/program/declaration.h"

namespace jit_passes::x86 {

JIT_PASSES_API Sizes broadcast(const Operator& op, const Sizes& a, const Sizes& b);
// The sizes of all operands after broadcasting.
JIT_PASSES_API Sizes sizesOfAll(const Operands& operands);
JIT_PASSES_API int64_t mostAxesOfAny(const Operator& op, int64_t first, int64_t most);
// An axis for each attribute.
JIT_PASSES_API int64_t asManyAxes(const Operator& op, int64_t first, int64_t most);
// The first spatial axis. The operand may have a batch axis, which alone may be empty.
JIT_PASSES_API size_t spatialAxis(const Operands& operands, int64_t spatial);
// The sizes of operands joined along an axis.
JIT_PASSES_API Sizes joined(const Operands& operands, int64_t along);
// The sizes of a concatenation's first operand whose shape is not [0].
JIT_PASSES_API const Sizes& firstShaped(const Operands& operands);

// The order of axes in memory of the first operand; or of the first operand with the size of the result.
JIT_PASSES_API Sizes
orderOfFirst(const Operator& op, const std::vector<Sizes>& orders, const std::vector<Sizes>& sizes);
JIT_PASSES_API Sizes
orderOfLargest(const Operator& op, const std::vector<Sizes>& orders, const std::vector<Sizes>& sizes);

} // namespace jit_passes::x86
