// Kernels of linear layers and convolutions whose input is quantized as the model runs: float32 in, float32 out. See
// kernels.h for what holds for all kernels, and floats.h for images of float32. A row is a pixel of an image, with its
// channels.
#pragma once

#include "floats.h"

namespace jit_passes::x86 {

// The smallest and the largest among 0 and the finite numbers of a tensor, and whether all its numbers are finite.
struct Extent {
  float low = 0, high = 0;
  bool finite = true;
};

// x = (code - zero_point) * scale, for codes of [0, 255].
struct RowGrid {
  float scale;
  int32_t zero_point;
};

// The formulas of jit_passes::choose_qparams: its range form pytorch, affine or symmetric, and fbgemm.
enum class RangeForm : int64_t { Affine, Symmetric, Fbgemm, Count };

// The bits of choose_qparams for the finite numbers.
RowGrid gridOf(const Extent& extent, RangeForm form);
// The grid of a pixel with a number that is not finite: its scale is NaN.
RowGrid withoutNumbers(const RowGrid& grid);

// The extents of the parts of an image, some of which may be empty. Items: parts.
struct Measure {
  static constexpr int64_t kParts = 64;

  Form form = bestForm();

  int64_t items(const Image& /*in*/) const { return kParts; }
  void run(const Image& in, Extent* parts, int64_t begin, int64_t end) const;
};
// Of all of these parts.
Extent extentOf(const Extent* parts);

// To codes of [0, 255]. With `steps`, x / scale is rounded, and else its sum with the zero point.
Quantize quantizeTo(const RowGrid& grid, bool steps, Form form = bestForm());

// Rows of dense codes, on a grid for each, or on one for all, which follows from the extents of all parts. With one for
// all, and a number that is not finite, `infinite` marks the rows that hold one. Items: rows.
struct QuantizeRows {
  RangeForm range = RangeForm::Affine;
  bool steps = false; // see quantizeTo
  Form form = bestForm();

  int64_t items(const Image& in) const { return in.rows() * in.width; }
  void run(const Image& in, RowGrid* grids, uint8_t* codes, int64_t begin, int64_t end) const;
  void run(
      const Image& in, const Extent* parts, bool* infinite, uint8_t* codes, int64_t begin, int64_t end) const;

 private:
  void quantize(const Image& in, int64_t row, int64_t count, const RowGrid& grid, uint8_t* codes) const;
};

// Marks the lines of an image that hold a number that is not finite. Items: lines.
void findInfinite(
    const float* in, const Strides& strides, const Image& sizes, bool* infinite, int64_t begin, int64_t end);

// How sums of products of codes and weights become float32, for the pixel m, counted through all images, and the
// channel c. All pixels have one grid, or each has its own; all pixels of a convolution's sample have the same one.
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
