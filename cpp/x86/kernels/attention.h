// Kernels of transformers: products of two activations, softmax and layer norm. kernels.h has the rules for all
// kernels.
#pragma once

#include "kernels.h"

namespace jit_passes::x86 {

// A limit for the products of codes in one sum: no part of the sum exceeds int32.
constexpr int64_t kMostCodeProducts = kMostProducts / 4;
// A limit for the codes of a normalized row: the sum of their squares fits int32.
constexpr int64_t kMostNormalized = (int64_t{1} << 31) / (255 * 255) - 1;

// Products of a batch of matrices of codes. The pixels of an image along its width are rows, and its channels
// columns.
//
//   y = table[code of fma(float(sum), multiplier, offset)]
//   sum[m, n] = sum over k of (a[m, k] - a_zero_point) (b[k, n] - b_zero_point)
//
// multiplier = s_a s_b / s_y and offset = z_y; see CodeRange. The table is optional. With `transposed`, rows of `b`
// are the columns n. If `a` or `b` have one image, one plane or one row of images, it serves for all of `out`.
//
// The right operand is packed first in each call, like the weights of convolutions, into `packedBytes` bytes at a
// multiple of 64.
struct MatrixProduct {
  bool transposed = false;
  int32_t a_zero_point = 0, b_zero_point = 0;
  float multiplier = 1, offset = 0;
  CodeRange range = {};
  const uint8_t* table = nullptr;
  Form form = bestForm();

  int64_t products(const Image& b) const { return transposed ? b.channels : b.width; }
  int64_t columns(const Image& b) const { return transposed ? b.width : b.channels; }
  int64_t packedBytes(const Image& b) const;
  int64_t packItems(const Image& b) const;
  void pack(const Image& b, uint8_t* packed, int64_t begin, int64_t end) const;

  int64_t items(const Image& out) const;
  void run(
      const Image& a, const Image& b, const uint8_t* packed, const Image& out, int64_t begin,
      int64_t end) const;
};

// Over the channels of each pixel, with d = (largest code) - x, so that no exponential is above 1:
//
//   e = high[d / 16] low[d % 16], which is exp(-d s_x)
//   y = code of fma(high[d / 16] factor, low[d % 16], offset), factor = 1 / s_y / (sum of e)
//
// The sum has 64 parts, one for each channel number modulo 64, each a chain of fused multiply-adds. Parts at a
// distance of 16 are added in pairs, and then the halves of the remaining ones. offset is z_y. Items: rows.
struct Softmax {
  Softmax(double in_scale, double out_scale, Form form = bestForm());

  float high[16], low[16];
  float inverse_scale;
  float offset = 0;
  CodeRange range = {};
  Form form;
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// Over the channels of each pixel, at most `kMostNormalized`. The sums are exact, and so is their difference in the
// variance:
//
//   factor = 1 / sqrt(fma(n sum of x^2 - (sum of x)^2, 1 / n^2, eps)), in double
//   y = code of fma(fma(x, float(factor), float(-mean factor)), multiplier[c], offset[c])
//
// eps is the model's divided by s_x^2; multiplier = weight / s_y and offset = z_y + bias / s_y. Items: rows.
struct LayerNorm {
  const float *multiplier, *offset;
  double eps;
  CodeRange range = {};
  Form form = bestForm();
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// Over the channels of a group in all pixels of an image. All groups have equally many channels. See LayerNorm.
// Items: images times blocks of channels, which are whole groups.
struct GroupNorm {
  int64_t groups;
  const float *multiplier, *offset;
  double eps;
  CodeRange range = {};
  int64_t items(const Image& out) const;
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

} // namespace jit_passes::x86
