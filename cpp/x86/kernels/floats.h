// Kernels of float32. kernels.h has the rules for all kernels. Strides of a float32 image are in bytes too, and
// `channels` counts floats. Results equal PyTorch's operators to the bit, with four exceptions: exponentials; gelu;
// square roots, which are rounded once here; and sums of more than two numbers, which PyTorch adds in another order.
#pragma once

#include "kernels.h"

namespace jit_passes::x86 {

// An operand: float32, or codes with the values (q - zero_point) * scale.
struct FloatOperand {
  bool is_float = true;
  float scale = 1;
  int32_t zero_point = 0;
};

// y = fma(b, b_factor, a * a_factor). An operand broadcasts as for Add, and may be the result's memory. Items: rows.
struct AddFloats {
  FloatOperand a, b;
  float a_factor = 1, b_factor = 1;
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& x, const Image& y, const Image& out, int64_t begin, int64_t end) const;
};

// y = a * b. Operands as for AddFloats. Items: rows.
struct MultiplyFloats {
  FloatOperand a, b;
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& x, const Image& y, const Image& out, int64_t begin, int64_t end) const;
};

// y = a / b. Operands as for AddFloats. Items: rows.
struct DivideFloats {
  FloatOperand a, b;
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& x, const Image& y, const Image& out, int64_t begin, int64_t end) const;
};

// y = c != 0 ? a : b, all float32, which broadcast as for Add. Items: rows.
struct SelectFloats {
  int64_t items(const Image& out) const { return out.rows(); }
  void run(
      const Image& c, const Image& a, const Image& b, const Image& out, int64_t begin, int64_t end) const;
};

// y = b == 0 ? a : number. Operands as for AddFloats. Items: rows.
struct FillFloats {
  FloatOperand a, b;
  float number = 0;
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& x, const Image& y, const Image& out, int64_t begin, int64_t end) const;
};

// y = 1 if a test of a and b holds, else 0. A NaN is unequal to all numbers, and neither less nor greater. For the
// last three tests a and b are truths: every number but 0 is true, and so is a NaN. Operands as for AddFloats.
// Items: rows.
struct CompareFloats {
  enum Which : int64_t { Less, LessOrEqual, Equal, NotEqual, Both, Either, Neither, Count };
  Which which;
  FloatOperand a, b;
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& x, const Image& y, const Image& out, int64_t begin, int64_t end) const;
};

// From float32 to codes, as in Quantize.
struct ToCodes {
  float inverse_scale = 1, offset = 0;
  CodeRange range = {};
};

// Over the channels of a group in all pixels of an image. All groups have equally many channels. Sums are in double.
// LayerNorm (attention.h) has the factor, and GroupNorm the items.
struct GroupNormFloats {
  int64_t groups;
  const float *weight, *bias;
  double eps;

  int64_t items(const Image& out) const;
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// Over the channels of each pixel, with d = x - (sum of x) / n:
//
//   factor = float(1 / sqrt((sum of d^2) / n + eps)), in double but for the sums
//   y = fma(d factor, weight[c], bias[c])
//
// A sum has 64 parts, as in Softmax. The result is float32 in `floats`, codes in `to`, or both. If rows are not
// `centred`, d = x, for the norm by the root of the mean square. Items: rows.
struct LayerNormFloats {
  const float *weight, *bias;
  double eps;
  bool centred = true;
  ToCodes codes = {};
  Form form = bestForm();
  int64_t items(const Image& in) const { return in.rows(); }
  void run(const Image& in, const Image* floats, const Image* to, int64_t begin, int64_t end) const;
};

// Over the channels of each pixel: y = exp(x - (largest x)) / (sum of these), or 0 if the exponent is below -87.
// Minus infinity gives 0; a row of minus infinities gives NaN, or 0 with `hides`. A sum has 64 parts, and results
// have the forms of layer norm. Items: rows.
struct SoftmaxFloats {
  ToCodes codes = {};
  bool hides = false;
  Form form = bestForm();
  int64_t items(const Image& in) const { return in.rows(); }
  void run(const Image& in, const Image* floats, const Image* to, int64_t begin, int64_t end) const;
};

// Over the channels of each pixel: y = x - m - log(sum of exp(x - m)), with m the largest x. The sum is computed as
// in SoftmaxFloats, the logarithm in double. Items: rows.
struct LogSoftmaxFloats {
  Form form = bestForm();
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// y = fma(x, factor[c], bias[c]) for each channel. Items: rows.
struct ScaleFloats {
  const float *factor, *bias;
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// y = x if x > 0, else x * slopes[c]. A NaN stays NaN. Items: rows.
struct PreluFloats {
  const float* slopes;
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// The largest number of a window, or NaN if the window has one. Items: rows times blocks of channels.
struct MaxFloats {
  std::vector<Span> z, y, x;
  int64_t dilation_d = 1, dilation_h = 1, dilation_w = 1;
  int64_t items(const Image& out) const;
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// Interpolation between pixels: y = v, with v as in Blend. Items: rows.
struct BlendFloats {
  std::vector<Blend::Taps> z, y, x;
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// y is a weighted sum of 4 x 4 pixels of a plane, first along rows, then along columns: four numbers a, b, c, d with
// weights s give fma(d, s[3], fma(c, s[2], fma(b, s[1], a s[0]))). Items: rows.
struct CubicFloats {
  struct Taps {
    int64_t at[4];
    float share[4];
  };
  std::vector<Taps> y, x;
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// y = (sum of x, pixel by pixel) / count. `divisor` replaces the count if it is not 0. Items: rows times blocks of
// channels.
struct AverageFloats {
  std::vector<Span> z, y, x;
  int64_t divisor = 0;
  int64_t items(const Image& out) const;
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// The sum, the mean, the root of the sum of squares, the largest or the smallest number, over the axes along which
// the result has size 1: images, planes, rows, columns and channels. The numbers of a row of pixels are combined
// first; channels are combined in 64 parts. Items: rows of the result times blocks of channels.
struct ReduceFloats {
  enum Which { Sum, Mean, Length, Largest, Smallest };

  Which which;
  Form form = bestForm();
  int64_t items(const Image& out) const;
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// y[c] = x[0] + ... + x[c] over the channels of each pixel, in double. Items: rows.
struct CumulateFloats {
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// A function of a number, with numbers of its own:
//
//   Scale           x * first
//   Clip            min(max(x, first), second), and a NaN as it is
//   Gelu, GeluTanh  x * P(x), the normal distribution's or PyTorch's approximation of it by tanh
//   Sigmoid, Tanh   1 / (1 + e) and (1 - e) / (1 + e), with e = exp(-|x|) or exp(-2 |x|), for x >= 0
//   Silu            x * Sigmoid(x)
//   HardSigmoid     min(max(x + 3, 0), 6) / 6
//   HardSwish       x * min(max(x + 3, 0), 6) / 6
//   Square          x * x
//   Root            the square root of x
//   InverseRoot     1 / Root(x)
//   Inverse         1 / x
//   Absolute        |x|
//   LeakyRelu       x if x > 0, else x * first
//   Elu             x if x > 0, else first * (exp(x) - 1)
//   Exp             exp(x)
//   Softplus        x if first * x > second, else log(1 + exp(first * x)) / first
//   Mish            x * Tanh(log(1 + exp(x)))
//   Cube            x * x * x
//   Power           x to the power of first, finite and not 0, in double
//
// P is a polynomial in each of 16 intervals, with an absolute error of 6e-8.
struct FloatFunction {
  enum Which : int64_t {
    None,
    Scale,
    Clip,
    Gelu,
    GeluTanh,
    Sigmoid,
    Silu,
    Tanh,
    HardSigmoid,
    HardSwish,
    Square,
    Root,
    InverseRoot,
    Inverse,
    Absolute,
    LeakyRelu,
    Elu,
    Exp,
    Softplus,
    Mish,
    Cube,
    Power,
    kCount
  };
  static constexpr int64_t numbersOf(int64_t which) {
    return which == Scale || which == LeakyRelu || which == Elu || which == Power ? 1
           : which == Clip || which == Softplus                                   ? 2
                                                                                  : 0;
  }

  Which which = None;
  float first = 0, second = 0;
  Form form = bestForm();

  // `out` may be `in`.
  void run(const float* in, float* out, int64_t count) const;
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// Products of matrices of float32, like MatrixProduct for codes. Products are added one after the other, in the
// order of k, by fused multiply-adds. The right operand is packed first, or with `in_place` not at all: `run` reads
// blocks of 32 columns where they are. A narrower block, or a block of `transposed`, is copied just ahead of its
// products.
struct FloatProduct {
  bool transposed = false;
  FloatFunction function = {}; // of the result
  Form form = bestForm();
  bool in_place = false;

  // Whether `in_place` is possible, and saves the packing: a single tile of rows reads each matrix. Of the result, the
  // number of matrices and their rows.
  bool canReadInPlace(const Image& b, int64_t matrices, int64_t rows) const;

  int64_t packedBytes(const Image& b) const;
  int64_t packItems(const Image& b) const;
  void pack(const Image& b, uint8_t* packed, int64_t begin, int64_t end) const;

  int64_t items(const Image& out) const;
  void run(
      const Image& a, const Image& b, const uint8_t* packed, const Image& out, int64_t begin,
      int64_t end) const;

 private:
  void runInPlace(const Image& a, const Image& b, const Image& out, int64_t begin, int64_t end) const;
};

} // namespace jit_passes::x86
