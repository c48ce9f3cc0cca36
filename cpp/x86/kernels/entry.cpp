// The edges of a region: float tensors to codes with channels innermost, and back.
//
// A row of the tensor is taken in tiles of pixels and channels, so that reading along the width, as NCHW has it,
// and writing along the channels both stay within cache lines that are near.
#include <algorithm>

#include "plain.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kTile = 64;

JIT_PASSES_VECTORIZED void quantizeRun(
    const float* in, int64_t count, const Quantize& q, uint8_t* out, int64_t step) {
  const float inverse = q.inverse_scale, zero_point = q.zero_point, low = q.low, high = q.high;
  if (step == 1) {
    for (int64_t i = 0; i < count; ++i) {
      out[i] = codeOf(__builtin_fmaf(in[i], inverse, zero_point), low, high);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      out[i * step] = codeOf(__builtin_fmaf(in[i], inverse, zero_point), low, high);
    }
  }
}

JIT_PASSES_VECTORIZED void dequantizeRun(
    const uint8_t* in, int64_t count, float scale, int32_t zero_point, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(in[i] - zero_point) * scale;
  }
}

const float* rowOf(const float* data, const Strides& strides, const Image& image, int64_t index) {
  const int64_t y = index % image.height, z = index / image.height % image.depth;
  return data + index / image.height / image.depth * strides.image + z * strides.depth + y * strides.height;
}

} // namespace

void Quantize::run(
    const float* in, const Strides& strides, const Image& out, int64_t begin, int64_t end) const {
  for (int64_t index = begin; index < end; ++index) {
    const float* from = rowOf(in, strides, out, index);
    uint8_t* to = out.rowAt(index);
    if (strides.channel == 1 && strides.width == out.channels && out.pixel == out.channels) {
      quantizeRun(from, out.width * out.channels, *this, to, 1);
    } else if (strides.channel == 1) {
      for (int64_t x = 0; x < out.width; ++x) {
        quantizeRun(from + x * strides.width, out.channels, *this, to + x * out.pixel, 1);
      }
    } else if (strides.width == 1) {
      for (int64_t x = 0; x < out.width; x += kTile) {
        for (int64_t c = 0; c < out.channels; ++c) {
          quantizeRun(
              from + c * strides.channel + x, std::min(kTile, out.width - x), *this, to + x * out.pixel + c,
              out.pixel);
        }
      }
    } else {
      for (int64_t x = 0; x < out.width; ++x) {
        for (int64_t c = 0; c < out.channels; ++c) {
          quantizeRun(from + x * strides.width + c * strides.channel, 1, *this, to + x * out.pixel + c, 1);
        }
      }
    }
  }
}

void Dequantize::run(const Image& in, float* out, const Strides& strides, int64_t begin, int64_t end) const {
  uint8_t column[kTile];
  for (int64_t index = begin; index < end; ++index) {
    const uint8_t* from = in.rowAt(index);
    float* to = const_cast<float*>(rowOf(out, strides, in, index));
    if (strides.channel == 1 && strides.width == in.channels && in.pixel == in.channels) {
      dequantizeRun(from, in.width * in.channels, scale, zero_point, to);
    } else if (strides.channel == 1) {
      for (int64_t x = 0; x < in.width; ++x) {
        dequantizeRun(from + x * in.pixel, in.channels, scale, zero_point, to + x * strides.width);
      }
    } else if (strides.width == 1) {
      for (int64_t x = 0; x < in.width; x += kTile) {
        const int64_t count = std::min(kTile, in.width - x);
        for (int64_t c = 0; c < in.channels; ++c) {
          for (int64_t i = 0; i < count; ++i) {
            column[i] = from[(x + i) * in.pixel + c];
          }
          dequantizeRun(column, count, scale, zero_point, to + c * strides.channel + x);
        }
      }
    } else {
      for (int64_t x = 0; x < in.width; ++x) {
        for (int64_t c = 0; c < in.channels; ++c) {
          to[x * strides.width + c * strides.channel] =
              static_cast<float>(from[x * in.pixel + c] - zero_point) * scale;
        }
      }
    }
  }
}

} // namespace jit_passes::x86
