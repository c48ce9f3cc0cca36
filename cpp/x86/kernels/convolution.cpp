// Convolution: packing, and the plain form.
//
// The plain form keeps the given order of weights: [out channel][tap][in channel of the group]. The kernel copies
// the window of a pixel into one row, so that a sum is one product of two rows.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "depthwise.h"
#include "plain.h"

namespace jit_passes::x86 {

JIT_PASSES_VECTORIZED void store(
    const int32_t* sums, int64_t count, int64_t first, const Pixel& pixel, const Image& image,
    const Requantize& how) {
  const uint8_t* residual = how.residual ? pixel.in(*how.residual) + first : nullptr;
  uint8_t* out = pixel.in(image) + first;
  const float* multiplier = how.multiplier + first;
  const float* offset = how.offset + first;
  const ToCode code(how.range);
  float with[kPlainBlock]; // the addend, copied since the residual may be the result's memory
  std::copy_n(offset, count, with);
  for (int64_t c = 0; residual && c < count; ++c) {
    with[c] = __builtin_fmaf(residual[c], how.residual_multiplier, offset[c]);
  }
  for (int64_t c = 0; c < count; ++c) {
    out[c] = code(__builtin_fmaf(sums[c], multiplier[c], with[c]));
  }
  lookUpInPlace(out, count, how.table);
}

// Codes have 16 bits so that the compiler uses the instruction that adds products of pairs.
JIT_PASSES_VECTORIZED void multiplyRows(
    const int16_t* x, const int8_t* weight, int64_t products, int64_t count, const int32_t* start,
    int32_t* sums) {
  for (int64_t c = 0; c < count; c += 4) {
    const int8_t* w0 = weight + c * products;
    const int8_t* w1 = c + 1 < count ? w0 + products : w0;
    const int8_t* w2 = c + 2 < count ? w1 + products : w0;
    const int8_t* w3 = c + 3 < count ? w2 + products : w0;
    int32_t sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
    for (int64_t i = 0; i < products; ++i) {
      sum0 += x[i] * w0[i];
      sum1 += x[i] * w1[i];
      sum2 += x[i] * w2[i];
      sum3 += x[i] * w3[i];
    }
    const int32_t sum[] = {sum0, sum1, sum2, sum3};
    for (int64_t i = 0; i < std::min<int64_t>(4, count - c); ++i) {
      sums[c + i] = start[c + i] + sum[i];
    }
  }
}

JIT_PASSES_VECTORIZED void widen(const uint8_t* from, int64_t count, int16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = from[i];
  }
}

namespace {

// Copies the codes of the window of an output pixel into one row: `channels` of each tap.
void copyWindow(const uint8_t* first, const Window& w, const Image& in, int64_t channels, int16_t* to) {
  const bool joined = in.pixel == channels && w.dilation_w == 1;
  const int64_t runs = joined ? 1 : w.kernel_w, length = joined ? w.kernel_w * channels : channels;
  for (int64_t z = 0; z < w.kernel_d; ++z) {
    for (int64_t y = 0; y < w.kernel_h; ++y) {
      const uint8_t* row = first + z * w.dilation_d * in.plane + y * w.dilation_h * in.row;
      for (int64_t x = 0; x < runs; ++x, to += length) {
        widen(row + x * w.dilation_w * in.pixel, length, to);
      }
    }
  }
}

void require(bool condition, const char* expected) {
  if (!condition) {
    throw std::invalid_argument(std::string("an x86 convolution expects ") + expected);
  }
}

} // namespace

Convolution::Convolution(
    const Window& window, int64_t in_channels, int64_t out_channels, const int8_t* weight, int32_t zero_point,
    bool dense, Form form)
    : window_(window),
      in_channels_(in_channels),
      out_channels_(out_channels),
      zero_point_(zero_point),
      dense_(dense),
      form_(form),
      start_(out_channels) {
  require(in_channels > 0 && out_channels > 0, "channels");
  require(
      window.groups > 0 && in_channels % window.groups == 0 && out_channels % window.groups == 0,
      "a number of groups that divides both numbers of channels");
  require(
      window.kernel_d > 0 && window.kernel_h > 0 && window.kernel_w > 0 && window.stride_d > 0 &&
          window.stride_h > 0 && window.stride_w > 0 && window.dilation_d > 0 && window.dilation_h > 0 &&
          window.dilation_w > 0,
      "a window, strides and dilations above 0");
  const int64_t products = window.taps() * (in_channels / window.groups);
  require(products <= kMostProducts, "at most 65792 products in a sum, which int32 holds");
  for (int64_t c = 0; c < out_channels; ++c) {
    int32_t sum = 0;
    for (int64_t i = 0; i < products; ++i) {
      sum += weight[c * products + i];
    }
    start_[c] = -zero_point * sum;
  }
  if (depthwise()) {
    form_ == Form::Plain ? packDepthwise(weight) : packDepthwiseTiles(weight);
  } else {
    form_ == Form::Plain ? packPlain(weight) : packTiles(weight);
  }
}

void Convolution::packPlain(const int8_t* weight) {
  const int64_t products = window_.taps() * (in_channels_ / window_.groups), row = padded(products);
  packed_.resize(out_channels_ * row);
  for (int64_t c = 0; c < out_channels_; ++c) {
    std::copy_n(weight + c * products, products, packed_.data() + c * row);
  }
}

// Finds the place of each weight by packing the numbers of weights, byte by byte. Numbers begin with 1, since 0 is
// padding.
void Convolution::unpack(int8_t* weight) const {
  const int64_t count = out_channels_ * window_.taps() * (in_channels_ / window_.groups);
  std::vector<int8_t> bytes(count);
  std::vector<uint32_t> numbers(packed_.size());
  for (int shift = 0; shift < 32; shift += 8) {
    for (int64_t i = 0; i < count; ++i) {
      bytes[i] = static_cast<int8_t>((i + 1) >> shift);
    }
    const Convolution alike(window_, in_channels_, out_channels_, bytes.data(), 0, dense_, form_);
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] |= static_cast<uint32_t>(static_cast<uint8_t>(alike.packed_[i])) << shift;
    }
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != 0) {
      weight[numbers[i] - 1] = packed_[i];
    }
  }
}

Border Convolution::border(const Image& in, const Image& out) const {
  const auto behind = [](int64_t out, int64_t stride, int64_t kernel, int64_t dilation, int64_t pad,
                         int64_t in) {
    return std::max<int64_t>(0, (out - 1) * stride + (kernel - 1) * dilation + 1 - pad - in);
  };
  const Window& w = window_;
  const int64_t filled = depthwise() && isFolded(w, form_) ? (w.kernel_w + 3) / 4 * 4 : w.kernel_w;
  return {
      std::max<int64_t>(0, w.pad_top),
      std::max<int64_t>(0, w.pad_left),
      behind(out.height, w.stride_h, w.kernel_h, w.dilation_h, w.pad_top, in.height),
      behind(out.width, w.stride_w, filled, w.dilation_w, w.pad_left, in.width),
      std::max<int64_t>(0, w.pad_front),
      behind(out.depth, w.stride_d, w.kernel_d, w.dilation_d, w.pad_front, in.depth)};
}

int64_t Convolution::items(const Image& in, const Image& out, const Image* residual) const {
  if (depthwise()) {
    return form_ == Form::Plain ? out.rows() : itemsDepthwiseTiles(out);
  }
  switch (form_) {
    case Form::Plain: return out.rows();
    case Form::Avx512: return itemsVnni(in, out, residual);
    case Form::Amx: return itemsAmx(in, out, residual);
    default: return itemsAvx2(in, out, residual);
  }
}

template <typename How>
void Convolution::runAs(const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const {
  const bool each = depthwise();
  switch (form_) {
    case Form::Plain:
      return each ? runDepthwise(in, out, how, begin, end) : runPlain(in, out, how, begin, end);
    case Form::Avx512:
      return each ? runDepthwiseVnni(in, out, how, begin, end) : runVnni(in, out, how, begin, end);
    case Form::Amx:
      return each ? runDepthwiseVnni(in, out, how, begin, end) : runAmx(in, out, how, begin, end);
    default: return each ? runDepthwiseAvx2(in, out, how, begin, end) : runAvx2(in, out, how, begin, end);
  }
}

void Convolution::run(
    const Image& in, const Image& out, const Requantize& how, int64_t begin, int64_t end) const {
  runAs(in, out, how, begin, end);
}

void Convolution::run(
    const Image& in, const Image& out, const SumsToFloats& how, int64_t begin, int64_t end) const {
  runAs(in, out, how, begin, end);
}

template <typename How>
void Convolution::runPlain(
    const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const {
  const Window& w = window_;
  const int64_t in_group = in_channels_ / w.groups, out_group = out_channels_ / w.groups;
  const int64_t products = padded(w.taps() * in_group);
  int16_t copy[padded(kMostProducts)];
  std::fill_n(copy, products, int16_t{0});
  int32_t sums[kPlainBlock];
  for (int64_t index = begin; index < end; ++index) {
    const int64_t y = index % out.height, z = index / out.height % out.depth;
    const int64_t n = index / out.height / out.depth;
    for (int64_t x = 0; x < out.width; ++x) {
      const uint8_t* pixel =
          in.at(n, z * w.stride_d - w.pad_front, y * w.stride_h - w.pad_top, x * w.stride_w - w.pad_left);
      for (int64_t group = 0; group < w.groups; ++group) {
        copyWindow(pixel + group * in_group, w, in, in_group, copy);
        const int64_t end_of_group = (group + 1) * out_group;
        for (int64_t first = group * out_group; first < end_of_group; first += kPlainBlock) {
          const int64_t count = std::min(kPlainBlock, end_of_group - first);
          multiplyRows(copy, packed_.data() + first * products, products, count, start_.data() + first, sums);
          store(sums, count, first, {n, z, y, x}, out, how);
        }
      }
    }
  }
}

} // namespace jit_passes::x86
