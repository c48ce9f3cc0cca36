// Resizes images by cubic interpolation: first along the pixels of a row, and then over four rows.
#include <array>

#include "floats.h"
#include "kept_rows.h"
#include "ops/vectorize.h"

namespace jit_passes::x86 {
namespace {

// The sum of four numbers times their weights.
[[gnu::always_inline]] inline float cubic(float a, float b, float c, float d, const float* shares) {
  return __builtin_fmaf(
      d, shares[3], __builtin_fmaf(c, shares[2], __builtin_fmaf(b, shares[1], a * shares[0])));
}

// `pixel` is the number of floats from one pixel of the row to the next.
JIT_PASSES_VECTORIZED void alongCubics(
    const float* row, int64_t pixel, const CubicFloats::Taps* taps, int64_t count, int64_t channels,
    float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    const CubicFloats::Taps own = taps[i];
    const float *a = row + own.at[0] * pixel, *b = row + own.at[1] * pixel;
    const float *c = row + own.at[2] * pixel, *d = row + own.at[3] * pixel;
    for (int64_t j = 0; j < channels; ++j) {
      out[i * channels + j] = cubic(a[j], b[j], c[j], d[j], own.share);
    }
  }
}

JIT_PASSES_VECTORIZED void acrossCubics(
    const float* const* rows, const CubicFloats::Taps& taps, int64_t count, float* __restrict out) {
  const float *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
  const CubicFloats::Taps own = taps;
  for (int64_t j = 0; j < count; ++j) {
    out[j] = cubic(a[j], b[j], c[j], d[j], own.share);
  }
}

} // namespace

void CubicFloats::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  constexpr int64_t kBytes = sizeof(float);
  for (int64_t c = 0; c < out.channels; c += kKept) {
    const int64_t channels = std::min(kKept, out.channels - c), most = kKept / channels;
    const bool dense = out.pixel == channels * kBytes;
    for (int64_t first = 0; first < out.width; first += most) {
      const int64_t pixels = std::min(most, out.width - first);
      const auto make = [&](const uint8_t* row, float* values) {
        const auto* from = reinterpret_cast<const float*>(row);
        alongCubics(from, in.pixel / kBytes, &x[first], pixels, channels, values);
      };
      KeptRows kept;
      for (int64_t row = begin; row < end; ++row) {
        const Taps& taps = y[row % out.height];
        const uint8_t* rows[4];
        const float* found[4];
        for (int i = 0; i < 4; ++i) {
          rows[i] = in.at(row / out.height, 0, taps.at[i], 0) + c * kBytes;
        }
        kept.find(rows, 4, make, found);
        for (int64_t i = 0; i < (dense ? 1 : pixels); ++i) {
          const float* of_pixel[4];
          std::transform(found, found + 4, of_pixel, [&](const float* at) { return at + i * channels; });
          acrossCubics(
              of_pixel, taps, dense ? pixels * channels : channels,
              reinterpret_cast<float*>(out.rowAt(row) + (first + i) * out.pixel + c * kBytes));
        }
      }
    }
  }
}

} // namespace jit_passes::x86
