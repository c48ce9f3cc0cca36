// From a program to steps over memory: which axis is innermost, which values are parts or other names of others, which
// have a border, and where each lies in the arena.
#pragma once

#include "steps.h"

namespace jit_passes::x86 {

// `contiguous`: which inputs are. `orders`: of the axes of each output. `weights` may be asked for what convolutions
// need around their input.
Lowered lower(
    const Program& program, const std::vector<Sizes>& sizes, const std::vector<bool>& contiguous,
    std::vector<Sizes> orders, Weights& weights);

} // namespace jit_passes::x86
