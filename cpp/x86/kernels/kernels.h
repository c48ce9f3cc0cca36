// Kernels on integer codes for x86: plans of int8 regions consist of these. No kernel depends on PyTorch.
//
// A value is a batch of images of uint8 codes, with channels innermost and one scale and zero point. int8 codes and
// their zero points are stored plus 128. Weights are int8 and symmetric.
//
// Each kernel is an object with parameters and packed weights, which shapes and threads share. `items` is the number
// of parts of a result, and `run(..., begin, end)` computes some of them. The division into calls never changes a
// result. `run` allocates nothing.
//
// Each kernel has a plain C++ form, which defines the result and runs on any processor, and forms for vector
// instructions with equal results to the bit: sums are exact in int32, and each float step is one fused multiply-add
// or conversion.
#pragma once

#include <cstdint>
#include <new>
#include <string>
#include <vector>

namespace jit_passes::x86 {

// Levels of instructions. Each includes the levels before, except that the last two may lack AVX-VNNI:
//
//   plain         any processor; loops are compiled for each level of vector units (ops/vectorize.h)
//   avx2          AVX2 and FMA: Haswell, Zen, and later
//   avx_vnni      and AVX-VNNI: Alder Lake, and later
//   avx512_vnni   and AVX-512 F, BW, VL, VNNI and VBMI: Ice Lake, Zen 4, and later
//   amx_int8      and the tile registers of AMX: Sapphire Rapids, and later
//
// A kernel without a form for a level uses the form of the level before.
enum class Form : int32_t { Plain, Avx2, AvxVnni, Avx512, Amx, Count };
const char* nameOf(Form form);
// Throws std::invalid_argument with a list of the names if there is none of this name.
Form formNamed(const std::string& name);
bool hasForm(Form form);
// The form of kernels that are made later: the last one that the processor supports; or the form of setBestForm; or
// the form that the environment variable JIT_PASSES_X86_LEVEL names at the first call. Throws std::invalid_argument
// if the variable names no level, or a level that the processor does not support.
Form bestForm();
void setBestForm(Form form);

// Kernels may read so many bytes after the end of an image or of its border. Kernels never use these bytes.
constexpr int64_t kSlack = 64;

// The most products in a sum, so that it fits int32 for all codes and weights.
constexpr int64_t kMostProducts = (int64_t{1} << 31) / (255 * 128) - 1;

// Codes, or float32 (floats.h), [images, depth, height, width, channels]. Strides are in bytes: `pixel` from one
// column to the next, `row`, `plane` (used if depth > 1) and `image`. `pixel` is larger than `channels` in a slice
// of a concatenation, and `row` is larger than width * pixel in an image with a border. Strides of 0 broadcast an
// operand. A sequence has height 1. A matrix has height 1 too, and its rows are columns of the image.
struct Image {
  uint8_t* data = nullptr;
  int64_t images = 1, height = 1, width = 1, channels = 1;
  int64_t pixel = 1, row = 1, image = 1;
  int64_t depth = 1, plane = 0;

  uint8_t* at(int64_t n, int64_t z, int64_t y, int64_t x) const {
    return data + n * image + z * plane + y * row + x * pixel;
  }
  // The number of rows in all images and planes.
  int64_t rows() const { return images * depth * height; }
  uint8_t* rowAt(int64_t index) const {
    const int64_t y = index % height, z = index / height % depth, n = index / height / depth;
    return at(n, z, y, 0);
  }
};

// Pixels around an image, filled with its zero point.
struct Border {
  int64_t top = 0, left = 0, bottom = 0, right = 0, front = 0, back = 0;
  bool operator==(const Border&) const = default;
};

// A dense image with this border. `bytes` is the size of both. `data` is the first pixel inside of the border, if
// the buffer begins at `buffer`.
struct Layout {
  Image image;
  int64_t bytes = 0;
};
Layout layOut(
    uint8_t* buffer, int64_t images, int64_t depth, int64_t height, int64_t width, int64_t channels,
    const Border& border);
// Fills the border. Items: images * (depth with border).
struct FillBorder {
  Border border;
  uint8_t value;
  int64_t items(const Image& image) const {
    return image.images * (image.depth + border.front + border.back);
  }
  void run(const Image& image, int64_t begin, int64_t end) const;
};

// Storage of at least this size is aligned to large pages and asks for them: a processor's TLB covers too few small
// ones.
constexpr size_t kLargePage = 1 << 21;
// Asks the system for large pages. `data` must be at the beginning of one.
void adviseLargePages(void* data, size_t bytes);

// Allocates storage aligned to a cache line, or to a large page.
template <typename T>
struct Aligned {
  using value_type = T;
  Aligned() = default;
  template <typename U>
  Aligned(const Aligned<U>& /*other*/) {}
  T* allocate(size_t count) {
    void* data = ::operator new(count * sizeof(T), alignment(count));
    adviseLargePages(data, count * sizeof(T));
    return static_cast<T*>(data);
  }
  void deallocate(T* data, size_t count) { ::operator delete(data, alignment(count)); }
  static std::align_val_t alignment(size_t count) {
    return std::align_val_t(count * sizeof(T) >= kLargePage ? kLargePage : 64);
  }
  bool operator==(const Aligned& /*other*/) const { return true; }
};
template <typename T>
using AlignedVector = std::vector<T, Aligned<T>>;

// The code of a number v is clamp(round(v) + zero_point, low, high), half to even. If v includes the zero point
// already, zero_point is 0 here: halves then go to even codes, and otherwise to even multiples of the scale.
// 0 <= low <= high <= 255.
struct CodeRange {
  int32_t low = 0, high = 255;
  int32_t zero_point = 0;
};

struct Window {
  int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t pad_top = 0, pad_left = 0;
  int64_t groups = 1;
  int64_t kernel_d = 1, stride_d = 1, dilation_d = 1, pad_front = 0;

  int64_t taps() const { return kernel_d * kernel_h * kernel_w; }
};

// y = table[code of fma(a, a_multiplier, fma(b, b_multiplier, offset))], with a_multiplier = s_a / s_y,
// b_multiplier = s_b / s_y, offset = z_y - z_a s_a / s_y - z_b s_b / s_y, in double, rounded once. Here and below,
// z_y is 0 if the range's zero_point is used. b_multiplier is negative for a difference. The table is optional. An
// operand broadcasts along an axis with stride 0, and along the channels if it has one channel. Items: rows.
struct Add {
  float a_multiplier, b_multiplier, offset;
  CodeRange range = {};
  const uint8_t* table = nullptr;
  Form form = bestForm();
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& a, const Image& b, const Image& out, int64_t begin, int64_t end) const;
};

// From sums to codes, for output channel c, with the code r of a residual if there is one:
//
//   v = fma(float(r), residual_multiplier, offset[c])                        offset[c] without a residual
//   y = code of fma(float(sum), multiplier[c], v)
//   y = table[y]                                                             if there is a table
//
// For y = a (convolution + bias) + b residual, multiplier = a s_x s_w / s_y, residual_multiplier = b s_r / s_y and
// offset = z_y + a bias / s_y - z_r b s_r / s_y, computed in double and rounded once. The residual has the shape of the
// output, and may be the output's own memory.
struct Requantize {
  const float* multiplier = nullptr;
  const float* offset = nullptr;
  CodeRange range = {};
  const uint8_t* table = nullptr;
  const Image* residual = nullptr;
  float residual_multiplier = 0;
};

struct SumsToFloats; // dynamic.h

// Convolution in one to three dimensions with any stride, dilation and groups, and linear, as 1 x 1.
//
//   sum[n, y, x, c] = start[c] + sum over ky, kx, i of in[n, y', x', i] * weight[c, ky, kx, i]
//   y' = y * stride_h - pad_top + ky * dilation_h, x' alike; start[c] = -zero_point * sum of weight[c]
//
// Pixels outside of the image are read, so it needs a border of zero points, with the sizes of `border`.
class Convolution {
 public:
  // weight[out_channels][kernel_d][kernel_h][kernel_w][in_channels / groups]. `dense`: the input has pixel ==
  // channels, which makes convolutions with few channels faster.
  Convolution(
      const Window& window, int64_t in_channels, int64_t out_channels, const int8_t* weight,
      int32_t zero_point, bool dense = true, Form form = bestForm());

  // The border that an input of this size needs, for an output of this size.
  Border border(const Image& in, const Image& out) const;
  // `residual` as for `run`.
  int64_t items(const Image& in, const Image& out, const Image* residual = nullptr) const;
  void run(const Image& in, const Image& out, const Requantize& requantize, int64_t begin, int64_t end) const;
  // Gives float32. The convolution must have been made with a zero point of 0.
  void run(const Image& in, const Image& out, const SumsToFloats& how, int64_t begin, int64_t end) const;
  const Window& window() const { return window_; }
  // The size of the packed weights.
  int64_t bytes() const { return static_cast<int64_t>(packed_.size()); }
  // The weights from which it was made, in their order.
  void unpack(int8_t* weight) const;

 private:
  // Output channels that are computed at one time.
  struct Block {
    int64_t first, count, columns, in_channel, weight;
  };

  bool depthwise() const {
    return window_.groups == in_channels_ && in_channels_ == out_channels_ &&
           (in_channels_ > 1 || window_.taps() > 1);
  }
  void packPlain(const int8_t* weight);
  void packDepthwise(const int8_t* weight);
  void packDepthwiseTiles(const int8_t* weight);
  void packTiles(const int8_t* weight);
  int64_t itemsDepthwiseTiles(const Image& out) const;
  int64_t itemsVnni(const Image& in, const Image& out, const Image* residual) const;
  int64_t itemsAmx(const Image& in, const Image& out, const Image* residual) const;
  int64_t itemsAvx2(const Image& in, const Image& out, const Image* residual) const;
  template <typename How>
  void runAs(const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const;
  template <typename How>
  void runPlain(const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const;
  template <typename How>
  void runDepthwise(const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const;
  template <typename How>
  void runDepthwiseVnni(const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const;
  template <typename How>
  void runDepthwiseAvx2(const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const;
  template <typename How>
  void runAvx2(const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const;
  template <typename Finish>
  void runTiles(
      const Image& in, const Image& out, const Image* residual, Finish& finish, int64_t begin,
      int64_t end) const;
  void runVnni(const Image& in, const Image& out, const Requantize& how, int64_t begin, int64_t end) const;
  void runVnni(const Image& in, const Image& out, const SumsToFloats& how, int64_t begin, int64_t end) const;
  template <typename How>
  void runAmx(const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const;

  Window window_;
  int64_t in_channels_, out_channels_;
  int32_t zero_point_;
  bool dense_;
  Form form_;
  int64_t runs_ = 0, quads_ = 0; // runs of neighbouring bytes, and groups of four bytes in each
  std::vector<Block> blocks_;
  AlignedVector<int8_t> packed_;
  AlignedVector<int32_t> start_;
};

// From float to codes: q = code of fma(x, inverse_scale, offset), with the offset z_q. A NaN becomes low. Equals
// jit_passes::quantize with one scale, to the bit. `in` has the tensor's strides in elements; NCHW and NHWC are
// fast. Items: rows.
struct Strides {
  int64_t image, depth, height, width, channel;
};
struct Quantize {
  float inverse_scale, offset;
  CodeRange range = {};
  Form form = bestForm();
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const float* in, const Strides& strides, const Image& out, int64_t begin, int64_t end) const;
};

// From codes to float: x = (q - zero_point) * scale. Items: rows.
struct Dequantize {
  float scale;
  int32_t zero_point;
  Form form = bestForm();
  int64_t items(const Image& in) const { return in.rows(); }
  void run(const Image& in, float* out, const Strides& strides, int64_t begin, int64_t end) const;
};

// y = table[code of fma((a - a_zero_point) (b - b_zero_point), multiplier, offset)], with multiplier = s_a s_b / s_y
// and offset = z_y. Operands as for Add. Items: rows.
struct Multiply {
  int32_t a_zero_point, b_zero_point;
  float multiplier, offset;
  CodeRange range = {};
  const uint8_t* table = nullptr;
  Form form = bestForm();
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& a, const Image& b, const Image& out, int64_t begin, int64_t end) const;
};

// y = code of fma(x - in_zero_point, factor, offset). The factor is `above` = s_x / s_y for x > in_zero_point, else
// below[c] = s_x / s_y times the slope of the channel. Items: rows.
struct Prelu {
  const float* below;
  float above, offset;
  int32_t in_zero_point;
  CodeRange range = {};
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// y = table[x], or a copy without a table, for a slice of a concatenation, another border or another scale. `in` may
// be `out`. Items: rows.
struct LookUp {
  const uint8_t* table = nullptr;
  Form form = bestForm();
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// y[n, z, y, x, c] = x[from_n[n], from_z[z], from_y[y], from_x[x], from_channels[c]], for resizing to the nearest
// pixel, flips and paddings around an image. Without `from_n`, images stay in place. Without `from_channels`, whole
// pixels are copied, and channels count bytes; with it, a channel has `bytes` bytes. Items: rows.
struct Resample {
  std::vector<int64_t> from_z, from_y, from_x, from_n = {}, from_channels = {};
  int64_t bytes = 1;
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// Linear interpolation between four pixels of a plane, or of two planes: y = code of fma(v, ratio, offset) with
//
//   top = fma(b - a, x.share, a), bottom = fma(d - c, x.share, c), v = fma(bottom - top, y.share, top)
//
// for a and b in the first row, c and d in the second. With v' from the second plane, v becomes v + (v' - v)
// z.share. ratio = s_x / s_y, offset = z_y - z_x ratio. Items: rows.
struct Blend {
  struct Taps {
    int64_t first, second;
    float share; // weight of the second
  };
  std::vector<Taps> z, y, x;
  float ratio = 1, offset = 0;
  CodeRange range = {};
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// y[c * parts + i] = tables[i][x_i[c]], for parts images x_i of equal sizes. A null table gives the code itself.
// `run` takes one or two images, which are x_i from `first` on. Items: rows.
struct Interleave {
  std::vector<const uint8_t*> tables; // one for each part
  Form form = bestForm();
  int64_t items(const Image& out) const { return out.rows(); }
  void run(
      const Image* parts, size_t first, size_t count, const Image& out, int64_t begin, int64_t end) const;
};

// The pixels that an output pixel of a pool reads along one axis, without padding, and the divisor of an average.
struct Span {
  int64_t begin, end, count;
};
// The spans of a window. `in` and `out` are the sizes of input and output. With `include_pad`, the number includes
// padding.
std::vector<Span> windowSpans(
    int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t dilation, int64_t pad_before,
    int64_t pad_after, bool include_pad);
// The spans of an adaptive pool. With one output, it is the whole axis.
std::vector<Span> adaptiveSpans(int64_t in, int64_t out);

// y = maximum over the window, given by the spans and dilations of its axes. Items: rows times blocks of channels.
struct MaxPool {
  std::vector<Span> z, y, x;
  int64_t dilation_d = 1, dilation_h = 1, dilation_w = 1;
  Form form = bestForm();
  int64_t items(const Image& out) const;
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

// y = code of fma(sum of (x - in_zero_point), ratio / count, offset), with ratio = s_x / s_y and offset = z_y. The
// quotient is computed in double and rounded once. `divisor` replaces the count if it is not 0. Windows have at most
// 2^22 pixels. Items: rows times blocks of channels.
struct AveragePool {
  std::vector<Span> z, y, x;
  double ratio;
  int32_t in_zero_point;
  float offset;
  int64_t divisor = 0;
  CodeRange range = {};
  Form form = bestForm();
  int64_t items(const Image& out) const;
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

} // namespace jit_passes::x86
