// How steps become phases: pieces that those who make them share.
#pragma once

#include "lower.h"

namespace jit_passes::x86 {

// An image by its offset in the arena.
struct Placed {
  Image image;
  int64_t offset;

  Image in(const Call& call) const {
    Image placed = image;
    placed.data = call.arena + offset;
    return placed;
  }
};

inline Placed placed(const Memory& memory, const Dims& dims) {
  return {imageOf(dims, memory.strides, memory.channels()), memory.offset};
}
inline Placed placed(const Memory& memory) { return placed(memory, imageDims(memory.sizes, memory.axis)); }

// A phase without parts, with what a profile says about it.
Phase describe(const Program& program, const Lowered& lowered, const Step& step);

// Of a step that adds.
Add addOf(const Program& program, const Lowered& lowered, const Step& step);

// Of steps with weights.
Part convolve(const Program& program, const Lowered& lowered, const Step& step);
std::vector<Part> upsample(
    const Program& program, const Lowered& lowered, const Step& step, Weights& weights);

} // namespace jit_passes::x86
