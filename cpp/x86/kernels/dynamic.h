// Kernels of linear layers and convolutions whose input is quantized at run time: float32 in, float32 out. kernels.h
// has the rules for all kernels, and floats.h the rules for images of float32. A row is a pixel of an image, with
// its channels.
#pragma once

#include "floats.h"

namespace jit_passes::x86 {

// The smallest and the largest of 0 and the finite numbers of a tensor; and whether all its numbers are finite.
struct Extent {
  float low = 0, high = 0;
  bool finite = true;
};

// x = (code - zero_point) * scale, for codes in [0, 255].
struct RowGrid {
  float scale;
  int32_t zero_point;
};

// The formulas of jit_passes::choose_qparams: the range form "pytorch", affine or symmetric, and "fbgemm".
enum class RangeForm : int64_t { Affine, Symmetric, Fbgemm, Count };

// Equals choose_qparams for the finite numbers, to the bit.
RowGrid gridOf(const Extent& extent, RangeForm form);
// The grid of a pixel with a number that is not finite: its scale is NaN.
RowGrid withoutNumbers(const RowGrid& grid);

// The extents of the parts of an image; parts may be empty. Items: parts.
struct Measure {
  static constexpr int64_t kParts = 64;

  Form form = bestForm();

  int64_t items(const Image& /*in*/) const { return kParts; }
  void run(const Image& in, Extent* parts, int64_t begin, int64_t end) const;
};
// The extent of all parts together.
Extent extentOf(const Extent* parts);

// The kernel that quantizes to codes in [0, 255]. With `steps`, x / scale is rounded; otherwise its sum with the
// zero point.
Quantize quantizeTo(const RowGrid& grid, bool steps, Form form = bestForm());

// Rows of dense codes, with a grid for each row, or one grid for all from the extents of all parts. With one grid,
// `infinite` marks the rows with a number that is not finite, if there is one. Items: rows.
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

// Marks the lines of an image with a number that is not finite. Items: lines.
void findInfinite(
    const float* in, const Strides& strides, const Image& sizes, bool* infinite, int64_t begin, int64_t end);

// From sums of products of codes and weights to float32, for channel c and pixel m, counted through all images. All
// pixels have one grid, or each pixel has its own; in a convolution, all pixels of a sample have one grid.
//
//   x = fma(float(sum - zero_point[m] sums[c]), scale[m] scales[c], bias[c])
//   y = function(x) + residual                                       a residual has the shape of the output
//
// With `codes` the output has the codes of y.
struct SumsToFloats {
  const float *scales, *bias;
  const int32_t* sums; // the sums of weights
  const RowGrid* grids;
  bool per_row;
  FloatFunction function = {};
  const Image* residual = nullptr;
  const ToCodes* codes = nullptr;

  int64_t bytes() const { return codes ? 1 : sizeof(float); } // of a number of the output
};

} // namespace jit_passes::x86
