// The order of results' axes in memory.
#pragma once

#include "shapes.h"

namespace jit_passes::x86 {

// For each output, its axes from the outermost in memory to the innermost, as PyTorch's operators would leave them:
// a permutation is a view, and elementwise operators keep the order of their operands. Float operators after the
// plan depend on the order: it decides whether `contiguous` copies or returns its operand, which may be written to
// later. Tensors with more than `kMostPlanAxes` axes are contiguous.
std::vector<Sizes> outputOrders(const Program& program, const std::vector<Sizes>& sizes);

// The axes from the first to the last.
Sizes contiguousOrder(int64_t rank);

// The strides of a dense tensor whose axes have this order.
Sizes stridesOf(const Sizes& sizes, const Sizes& order);

} // namespace jit_passes::x86
