// Images of operands that broadcast.
#pragma once

#include "x86/running/step_context.h"

namespace jit_passes::x86 {

// An operand as an image with the axes of the result. Axes along which it broadcasts have stride 0.
inline Placed broadcastTo(const Memory& to, const Memory& from, const Dims& dims) {
  const size_t missing = to.sizes.size() - from.sizes.size();
  Sizes strides(to.sizes.size(), 0);
  for (size_t i = 0; i < from.sizes.size(); ++i) {
    strides[i + missing] = from.sizes[i] == 1 ? 0 : from.strides[i];
  }
  const int64_t axis = to.axis - static_cast<int64_t>(missing);
  return {imageOf(dims, strides, axis < 0 ? 1 : from.sizes[axis]), from.offset, from.home};
}

inline FloatOperand floatOperand(const StepContext& c, size_t i) {
  const Grid& grid = *c.in(i).grid;
  return {grid.is_float, static_cast<float>(grid.scale), static_cast<int32_t>(grid.zero_point)};
}

} // namespace jit_passes::x86
