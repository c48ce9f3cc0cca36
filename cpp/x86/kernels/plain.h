// Rounding and storing in the plain forms, which define the results of all forms.
#pragma once

#include <cmath>

#include "dynamic.h"
#include "kernels.h"
#include "ops/vectorize.h"

namespace jit_passes::x86 {

// The code of a number. A NaN has the code `low`. The order of clamping and rounding does not matter, since the ends
// are integers.
struct ToCode {
  explicit ToCode(const CodeRange& range)
      : low(static_cast<float>(range.low - range.zero_point)),
        high(static_cast<float>(range.high - range.zero_point)),
        zero_point(range.zero_point) {}

  uint8_t operator()(float v) const {
    const float above = v > low ? v : low;
    const auto rounded = static_cast<int32_t>(__builtin_rintf(above < high ? above : high));
    return static_cast<uint8_t>(rounded + zero_point);
  }

  float low, high;
  int32_t zero_point;
};

// x * factor + offset has mean 0 and variance 1. Operations that a compiler may fuse are fused explicitly here, so
// that all forms round alike. The function is inlined, since a call from the vector form would take 200 ns.
struct Normal {
  float factor, offset;
};

inline __attribute__((always_inline)) Normal
normalOf(int64_t sum, int64_t squares, int64_t count, double eps) {
  const double share = 1 / static_cast<double>(count);
  constexpr int64_t kMostOfInt64 = int64_t{1} << 23;
  const auto wide = static_cast<__int128>(count) * squares - static_cast<__int128>(sum) * sum;
  // The variance times count^2, which is exact.
  const auto spread =
      count <= kMostOfInt64 ? static_cast<double>(count * squares - sum * sum) : static_cast<double>(wide);
  const double factor = 1 / std::sqrt(__builtin_fma(spread, share * share, eps));
  return {static_cast<float>(factor), static_cast<float>(-static_cast<double>(sum) * share * factor)};
}

inline void lookUpInPlace(uint8_t* codes, int64_t count, const uint8_t* table) {
  for (int64_t i = 0; table && i < count; ++i) {
    codes[i] = table[codes[i]];
  }
}

// Sums of float32 have so many parts, which all forms add in one order.
constexpr int64_t kSumParts = 64;

inline __attribute__((always_inline)) float sumOfParts(const float* parts) {
  float sums[16];
  for (int i = 0; i < 16; ++i) {
    sums[i] = (parts[i] + parts[i + 16]) + (parts[i + 32] + parts[i + 48]);
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      sums[i] += sums[i + half];
    }
  }
  return sums[0];
}

// The channels that the plain forms compute at one time.
constexpr int64_t kPlainBlock = 64;

// Rows are padded with zeros to whole vectors, since the scalar rest of a loop takes longer.
constexpr int64_t padded(int64_t products) { return (products + 63) / 64 * 64; }

// sums[c] = start[c] + sum over i of x[i] * weight[c][i], with `padded` products.
void multiplyRows(
    const int16_t* x, const int8_t* weight, int64_t products, int64_t count, const int32_t* start,
    int32_t* sums);
void widen(const uint8_t* from, int64_t count, int16_t* to);

struct Pixel {
  int64_t n, z, y, x;

  uint8_t* in(const Image& image) const { return image.at(n, z, y, x); }
};

// Stores `count` sums of a pixel, for the channels from `first` on. SumsToFloats may give float32.
void store(
    const int32_t* sums, int64_t count, int64_t first, const Pixel& pixel, const Image& out,
    const Requantize& how);
void store(
    const int32_t* sums, int64_t count, int64_t first, const Pixel& pixel, const Image& out,
    const SumsToFloats& how);
// Stores the sums of the pixel with number `number` among all, for the channels from `first` on. `out` and
// `residual`, which may be null, have the pixel's first channel.
void storeFloats(
    const int32_t* sums, int64_t count, int64_t first, int64_t number, const uint8_t* residual, uint8_t* out,
    const SumsToFloats& how);

} // namespace jit_passes::x86
