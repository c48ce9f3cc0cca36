// How results lie in memory.
#pragma once

#include "shapes.h"

namespace jit_passes::x86 {

// Of each output, its axes from the outermost in memory on, as PyTorch's operators would leave them: a permutation
// is a view, and what works element by element keeps the order of its operands. Float operators behind the plan see
// by it whether `contiguous` copies, or gives another name of what is written in place. Tensors of more than
// `kMostAxes` are contiguous.
std::vector<Sizes> outputOrders(const Program& program, const std::vector<Sizes>& sizes);

// From the first axis to the last.
Sizes contiguousOrder(int64_t rank);

// The strides of a dense tensor whose axes lie so.
Sizes stridesOf(const Sizes& sizes, const Sizes& order);

} // namespace jit_passes::x86
