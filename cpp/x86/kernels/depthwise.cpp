// Depthwise convolution: one input channel for each output channel.
//
// The plain form has weights [tap][channel], and sums a block of channels tap by tap.
#include <algorithm>

#include "plain.h"

namespace jit_passes::x86 {
namespace {

JIT_PASSES_VECTORIZED void addTap(const uint8_t* x, const int8_t* weight, int64_t count, int32_t* sums) {
  for (int64_t c = 0; c < count; ++c) {
    sums[c] += static_cast<int16_t>(x[c]) * weight[c];
  }
}

} // namespace

void Convolution::packDepthwise(const int8_t* weight) {
  const int64_t taps = window_.taps();
  packed_.resize(taps * out_channels_);
  for (int64_t c = 0; c < out_channels_; ++c) {
    for (int64_t t = 0; t < taps; ++t) {
      packed_[t * out_channels_ + c] = weight[c * taps + t];
    }
  }
}

template <typename How>
void Convolution::runDepthwise(
    const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const {
  const Window& w = window_;
  int32_t sums[kPlainBlock];
  for (int64_t index = begin; index < end; ++index) {
    const int64_t y = index % out.height, z = index / out.height % out.depth;
    const int64_t n = index / out.height / out.depth;
    for (int64_t x = 0; x < out.width; ++x) {
      const uint8_t* from =
          in.at(n, z * w.stride_d - w.pad_front, y * w.stride_h - w.pad_top, x * w.stride_w - w.pad_left);
      for (int64_t first = 0; first < out_channels_; first += kPlainBlock) {
        const int64_t count = std::min(kPlainBlock, out_channels_ - first);
        std::copy_n(start_.data() + first, count, sums);
        const int8_t* weight = packed_.data() + first;
        for (int64_t kz = 0; kz < w.kernel_d; ++kz) {
          for (int64_t ky = 0; ky < w.kernel_h; ++ky) {
            for (int64_t kx = 0; kx < w.kernel_w; ++kx) {
              const int64_t tap =
                  kz * w.dilation_d * in.plane + ky * w.dilation_h * in.row + kx * w.dilation_w * in.pixel;
              addTap(from + tap + first, weight, count, sums);
              weight += out_channels_;
            }
          }
        }
        store(sums, count, first, {n, z, y, x}, out, how);
      }
    }
  }
}

template void Convolution::runDepthwise(
    const Image& in, const Image& out, const Requantize& how, int64_t begin, int64_t end) const;
template void Convolution::runDepthwise(
    const Image& in, const Image& out, const SumsToFloats& how, int64_t begin, int64_t end) const;

} // namespace jit_passes::x86
