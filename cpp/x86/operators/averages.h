// Windows of pools, and averages and largest numbers of windows.
#pragma once

#include "x86/running/step_context.h"

namespace jit_passes::x86 {

// Along depth, height and width, the elements of the operand that each element of the result goes over.
using Windows = std::array<std::vector<Span>, 3>;

// A size along depth, height or width, from 0 to 2.
inline int64_t sizeOf(const Image& image, size_t i) {
  return i == 0 ? image.depth : i == 1 ? image.height : image.width;
}

// Of a pool, by PoolAttributes.
Windows windowsOfPool(const StepContext& c);
// That divide axes of one image into as many parts as the other has elements.
Windows adaptiveWindows(const Image& x, const Image& y);
// The axes, from the innermost on, along which every window is the element itself count as channels: kernels go over
// channels in vectors. `bytes` of an element.
void joinChannels(Windows& windows, int64_t bytes, Image& x, Image& y);
// `divisor` stands in for the number of elements, if not 0.
Part averageOver(const StepContext& c, Windows windows, int64_t divisor, Placed x, Placed y);
// `dilation`: along depth, height and width.
Part largestOver(
    const StepContext& c, Windows windows, const std::array<int64_t, 3>& dilation, Placed x, Placed y);

} // namespace jit_passes::x86
