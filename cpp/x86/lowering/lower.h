// From a program to steps over memory: the innermost axis of each value, values that are slices or other names of
// others, borders, and places in the arena.
#pragma once

#include "steps.h"

namespace jit_passes::x86 {

// `contiguous`: whether each input is contiguous. `orders`: the order of each output's axes. `weights` packs the
// weights, which tell the borders that convolutions read.
Lowered lower(
    const Program& program, const std::vector<Sizes>& sizes, const std::vector<bool>& contiguous,
    std::vector<Sizes> orders, Weights& weights);

} // namespace jit_passes::x86
