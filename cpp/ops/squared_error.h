// The squared error of quantizing a histogram.
//
//   error(range) = sum over bins of  count * (x - dequantize(quantize(x)))^2    at the bin's centre
//
// with scale and zero point derived from the range as the quantizer will derive them. Unlike an
// error model that assumes uniform rounding noise, this knows that 0 is represented exactly, which
// matters after a ReLU.
#pragma once

#include <cstdint>
#include <vector>

#include "core/registry.h"

namespace jit_passes {

// In units of a bin, a power of two: sums of squares neither overflow nor vanish, whatever is quantized.
struct Bins {
  double unit;
  std::vector<float> centres;
  std::vector<float> counts;
};

struct IntegerGrid {
  int64_t quant_min;
  int64_t quant_max;
  bool symmetric;
};

// The bins that are not empty. min and max are the exact range that was seen: the outermost bins
// reach beyond it.
Bins binsOf(const at::Tensor& histogram, int64_t exponent, int64_t offset, double min, double max);

// In squared units; infinite for an empty range.
float errorOf(const Bins& bins, const IntegerGrid& grid, float min, float max);

} // namespace jit_passes
