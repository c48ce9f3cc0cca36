// Values in memory as images for kernels.
#pragma once

#include "weights.h"

namespace jit_passes::x86 {

// The border that the kernels of a convolution read around an image.
Border borderOf(const Operator& op, const Packed& packed, const Image& in, const Image& out);
// Makes a border at least as wide as another.
void widen(Border& border, const Border& by);

// Images, planes, rows and columns of a value: which axis each counts, and how many of its elements at once.
struct Dim {
  int64_t size = 1, axis = -1, factor = 1;
};
using Dims = std::array<Dim, 4>;

// All axes but that of the channels, the last one being columns. Of more than `kMostAxes`, some count as one: memory
// has them side by side, and so have tensors that are contiguous.
Dims axisDims(const Sizes& sizes, int64_t axis);
// As axisDims, for kernels that go pixel by pixel: where there are few rows, the last axis is divided into some.
Dims pixelDims(const Sizes& sizes, int64_t axis);
// The columns go along the axis whose elements are neighbours in a tensor of these strides, if its channels are none:
// so a kernel reads or writes whole lines of the cache. `unit` is the stride of neighbours.
Dims alongNeighbours(Dims dims, at::IntArrayRef strides, int64_t channel, int64_t unit);
// Rows of its images: all but the last axis.
int64_t linesOf(const Dims& dims);
// Of a batch of images, or of one: what is behind the channels is spatial.
Dims imageDims(const Sizes& sizes, int64_t axis);
// With these strides of the axes, in no memory yet; `bytes` of an element.
Image imageOf(const Dims& dims, const Sizes& strides, int64_t channels, int64_t bytes = 1);

} // namespace jit_passes::x86
