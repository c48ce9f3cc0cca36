// Convolution: packing, and the plain form.
//
// Weights of the plain form lie as they came: [out channel][tap][in channel of the group], so that a product
// sums up runs of neighbouring bytes. Where the pixels of the image are dense, the taps of one row of the window
// are one run.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "plain.h"

namespace jit_passes::x86 {

Form bestForm() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  static const bool vnni = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
                           __builtin_cpu_supports("avx512vbmi");
  return vnni ? Form::Vnni : Form::Plain;
#else
  return Form::Plain;
#endif
}

JIT_PASSES_VECTORIZED void store(
    const int32_t* sums, int64_t count, int64_t first, const Requantize& requantize, const uint8_t* residual,
    uint8_t* out) {
  const float* multiplier = requantize.multiplier + first;
  const float* offset = requantize.offset + first;
  const float low = requantize.low, high = requantize.high, scale = requantize.residual_multiplier;
  if (residual) {
    for (int64_t c = 0; c < count; ++c) {
      const float v = __builtin_fmaf(sums[c], multiplier[c], offset[c]);
      out[c] = codeOf(__builtin_fmaf(residual[c], scale, v), low, high);
    }
  } else {
    for (int64_t c = 0; c < count; ++c) {
      out[c] = codeOf(__builtin_fmaf(sums[c], multiplier[c], offset[c]), low, high);
    }
  }
  lookUpInPlace(out, count, requantize.table);
}

namespace {

// sums[c] = sum over the runs and their bytes of x * w, for `count` channels whose weights are `channel` apart.
// Products of two codes fit in 16 bits.
struct Runs {
  int64_t planes, rows, taps, length; // `taps` runs of `length` bytes in each row of the window
  int64_t plane, row, tap;            // bytes from one to the next in the image
};

JIT_PASSES_VECTORIZED void sumRuns(
    const uint8_t* x, const int8_t* weight, const Runs& runs, int64_t channel, int64_t count,
    const int32_t* start, int32_t* sums) {
  for (int64_t c = 0; c < count; c += 4) {
    const int8_t* w0 = weight + c * channel;
    const int8_t* w1 = c + 1 < count ? w0 + channel : w0;
    const int8_t* w2 = c + 2 < count ? w1 + channel : w0;
    const int8_t* w3 = c + 3 < count ? w2 + channel : w0;
    int32_t sum[4] = {};
    for (int64_t z = 0; z < runs.planes; ++z) {
      for (int64_t y = 0; y < runs.rows; ++y) {
        for (int64_t t = 0; t < runs.taps; ++t) {
          const uint8_t* from = x + z * runs.plane + y * runs.row + t * runs.tap;
          int32_t a = 0, b = 0, d = 0, e = 0;
          for (int64_t i = 0; i < runs.length; ++i) {
            const int16_t v = from[i];
            a += v * w0[i];
            b += v * w1[i];
            d += v * w2[i];
            e += v * w3[i];
          }
          sum[0] += a, sum[1] += b, sum[2] += d, sum[3] += e;
          w0 += runs.length, w1 += runs.length, w2 += runs.length, w3 += runs.length;
        }
      }
    }
    for (int64_t i = 0; i < std::min<int64_t>(4, count - c); ++i) {
      sums[c + i] = start[c + i] + sum[i];
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
  require(products < (int64_t{1} << 31) / (255 * 128), "at most 65793 products in a sum, which int32 holds");
  for (int64_t c = 0; c < out_channels; ++c) {
    int32_t sum = 0;
    for (int64_t i = 0; i < products; ++i) {
      sum += weight[c * products + i];
    }
    start_[c] = -zero_point * sum;
  }
  const bool vnni = form_ == Form::Vnni;
  if (depthwise()) {
    vnni ? packDepthwiseVnni(weight) : packDepthwise(weight);
  } else {
    vnni ? packVnni(weight) : packPlain(weight);
  }
}

void Convolution::packPlain(const int8_t* weight) {
  packed_.assign(weight, weight + out_channels_ * window_.taps() * (in_channels_ / window_.groups));
}

Border Convolution::border(const Image& in, const Image& out) const {
  const auto behind = [](int64_t out, int64_t stride, int64_t kernel, int64_t dilation, int64_t pad,
                         int64_t in) {
    return std::max<int64_t>(0, (out - 1) * stride + (kernel - 1) * dilation + 1 - pad - in);
  };
  const Window& w = window_;
  return {
      std::max<int64_t>(0, w.pad_top),
      std::max<int64_t>(0, w.pad_left),
      behind(out.height, w.stride_h, w.kernel_h, w.dilation_h, w.pad_top, in.height),
      behind(out.width, w.stride_w, w.kernel_w, w.dilation_w, w.pad_left, in.width),
      std::max<int64_t>(0, w.pad_front),
      behind(out.depth, w.stride_d, w.kernel_d, w.dilation_d, w.pad_front, in.depth)};
}

int64_t Convolution::items(const Image& in, const Image& out) const {
  if (form_ == Form::Plain) {
    return out.rows();
  }
  return depthwise() ? itemsDepthwiseVnni(out) : itemsVnni(in, out);
}

void Convolution::run(
    const Image& in, const Image& out, const Requantize& requantize, int64_t begin, int64_t end) const {
  if (depthwise()) {
    const auto run = form_ == Form::Vnni ? &Convolution::runDepthwiseVnni : &Convolution::runDepthwise;
    (this->*run)(in, out, requantize, begin, end);
  } else {
    const auto run = form_ == Form::Vnni ? &Convolution::runVnni : &Convolution::runPlain;
    (this->*run)(in, out, requantize, begin, end);
  }
}

void Convolution::runPlain(
    const Image& in, const Image& out, const Requantize& requantize, int64_t begin, int64_t end) const {
  const Window& w = window_;
  const int64_t in_group = in_channels_ / w.groups, out_group = out_channels_ / w.groups;
  const int64_t products = w.taps() * in_group;
  const bool joined = w.groups == 1 && in.pixel == in_channels_ && w.dilation_w == 1;
  const Runs runs{
      w.kernel_d,
      w.kernel_h,
      joined ? 1 : w.kernel_w,
      joined ? w.kernel_w * in_group : in_group,
      w.dilation_d * in.plane,
      w.dilation_h * in.row,
      w.dilation_w * in.pixel};
  int32_t sums[kPlainBlock];
  for (int64_t index = begin; index < end; ++index) {
    const int64_t y = index % out.height, z = index / out.height % out.depth;
    const int64_t n = index / out.height / out.depth;
    const uint8_t* row = in.at(n, z * w.stride_d - w.pad_front, y * w.stride_h - w.pad_top, -w.pad_left);
    for (int64_t first = 0; first < out_channels_;) {
      const int64_t group = first / out_group;
      const int64_t count = std::min(kPlainBlock, (group + 1) * out_group - first);
      for (int64_t x = 0; x < out.width; ++x) {
        sumRuns(
            row + x * w.stride_w * in.pixel + group * in_group, packed_.data() + first * products, runs,
            products, count, start_.data() + first, sums);
        const uint8_t* residual = requantize.residual ? requantize.residual->at(n, z, y, x) + first : nullptr;
        store(sums, count, first, requantize, residual, out.at(n, z, y, x) + first);
      }
      first += count;
    }
  }
}

} // namespace jit_passes::x86
