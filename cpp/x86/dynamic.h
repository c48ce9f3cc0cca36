// Kernels of linear layers and convolutions whose input is quantized as the model runs: float32 in, float32 out. See
// kernels.h for what holds for all kernels, and floats.h for images of float32. A row is a pixel of an image, with its
// channels.
#pragma once

#include "floats.h"

namespace jit_passes::x86 {

// The smallest and the largest of 0 and some numbers; NaN where one of them is not finite.
struct Extent {
  float low = 0, high = 0;
};

// x = (code - zero_point) * scale, for codes of [0, 255].
struct RowGrid {
  float scale;
  int32_t zero_point;
};

// Those of jit_passes::choose_qparams: of its range form pytorch, affine or symmetric, and of fbgemm.
enum class RangeForm : int64_t { Affine, Symmetric, Fbgemm, Count };

// The bits of choose_qparams: of an extent that is not finite, the scale NaN.
RowGrid gridOf(const Extent& extent, RangeForm form);

// The extents of the parts of an image, some of which may be empty. Items: parts.
struct Measure {
  static constexpr int64_t kParts = 64;

  Form form = bestForm();

  int64_t items(const Image& /*in*/) const { return kParts; }
  void run(const Image& in, Extent* parts, int64_t begin, int64_t end) const;
};
// Of all of these parts.
RowGrid gridOf(const Extent* parts, RangeForm form);

// To codes of [0, 255]. With `steps`, x / scale is rounded, and else its sum with the zero point.
Quantize quantizeTo(const RowGrid& grid, bool steps, Form form = bestForm());

// Rows of dense codes, on a grid for each, or on one for all, which follows from the extents of all parts. Items: rows.
struct QuantizeRows {
  bool per_row = false;
  RangeForm range = RangeForm::Affine;
  bool steps = false; // see quantizeTo
  Form form = bestForm();

  int64_t items(const Image& in) const { return in.rows() * in.width; }
  void run(
      const Image& in, const Extent* parts, RowGrid* grids, uint8_t* codes, int64_t begin, int64_t end) const;
};

// How sums of products of codes and weights become float32, for the pixel m, counted through all images, and the
// channel c. All pixels have one grid, but for rows of linear layers.
//
//   x = fma(float(sum - zero_point[m] sums[c]), scale[m] scales[c], bias[c])
//   y = function(x) + residual                                       a residual has the shape of the output
struct SumsToFloats {
  const float *scales, *bias;
  const int32_t* sums; // of the weights
  const RowGrid* grids;
  bool per_row;
  FloatFunction function = {};
  const Image* residual = nullptr;
};

} // namespace jit_passes::x86
