// Windows of pools, with averages and maxima over windows.
#pragma once

#include "x86/running/step_context.h"

namespace jit_passes::x86 {

// The elements of the operand that each element of the result covers, along depth, height and width.
using Windows = std::array<std::vector<Span>, 3>;

// The size along depth (0), height (1) or width (2).
inline int64_t sizeOf(const Image& image, size_t i) {
  return i == 0 ? image.depth : i == 1 ? image.height : image.width;
}

// The windows of a pool with PoolAttributes.
Windows windowsOfPool(const StepContext& c);
// Windows that divide the axes of image x into as many parts as image y has elements.
Windows adaptiveWindows(const Image& x, const Image& y);
// Counts axes, from the innermost on, along which every window is a single element as channels, since kernels go
// over channels in vectors. `bytes` is the size of an element.
void joinChannels(Windows& windows, int64_t bytes, Image& x, Image& y);
// `divisor` replaces the number of elements if it is not 0.
Part averageOver(const StepContext& c, Windows windows, int64_t divisor, Placed x, Placed y);
// `dilation` is along depth, height and width.
Part largestOver(
    const StepContext& c, Windows windows, const std::array<int64_t, 3>& dilation, Placed x, Placed y);

} // namespace jit_passes::x86
