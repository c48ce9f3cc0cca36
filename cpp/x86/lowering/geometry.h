// Values in memory as images for kernels.
#pragma once

#include "weights.h"

namespace jit_passes::x86 {

// The border around an image that the kernels of a convolution read.
Border borderOf(const Operator& op, const Packed& packed, const Image& in, const Image& out);
// Makes a border at least as wide as `by`.
void widen(Border& border, const Border& by);

// Either images, planes, rows or columns of a value: its axis, and the number of the axis's elements in each.
struct Dim {
  int64_t size = 1, axis = -1, factor = 1;
};
using Dims = std::array<Dim, 4>;

// All axes but the channels; the last one is columns. With more than `kMostPlanAxes` axes, some count as one. Axes that
// count as one are neighbours in memory, also in contiguous tensors.
JIT_PASSES_API Dims axisDims(const Sizes& sizes, int64_t axis);
// axisDims for kernels that go pixel by pixel: if there are few rows, the last axis is divided into several.
JIT_PASSES_API Dims pixelDims(const Sizes& sizes, int64_t axis);
// Lets columns go along the axis whose elements are neighbours in a tensor of these strides, if the channels are
// not: a kernel then reads or writes whole cache lines. `unit` is the stride of neighbours.
JIT_PASSES_API Dims alongNeighbours(Dims dims, at::IntArrayRef strides, int64_t channel, int64_t unit);
// The number of rows in all images: the product of all axes but the last.
JIT_PASSES_API int64_t linesOf(const Dims& dims);
// For a batch of images, or one image: the axes after the channels are spatial.
JIT_PASSES_API Dims imageDims(const Sizes& sizes, int64_t axis);
// An image with these strides of its axes, and without memory. `bytes` is the size of an element.
JIT_PASSES_API Image imageOf(const Dims& dims, const Sizes& strides, int64_t channels, int64_t bytes = 1);

} // namespace jit_passes::x86
