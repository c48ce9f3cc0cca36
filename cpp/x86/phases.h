// How steps become phases: pieces that those who make them share.
#pragma once

#include "placed.h"

namespace jit_passes::x86 {

// A phase without parts, with what a profile says about it.
Phase describe(const Program& program, const Lowered& lowered, const Step& step);

// Of a step that adds.
Add addOf(const Program& program, const Lowered& lowered, const Step& step);

// Of steps with weights.
Part convolve(const Program& program, const Lowered& lowered, const Step& step);
std::vector<Part> upsample(
    const Program& program, const Lowered& lowered, const Step& step, Weights& weights);

} // namespace jit_passes::x86
