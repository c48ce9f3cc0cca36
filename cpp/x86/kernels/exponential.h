// The exponential of float32, and functions that follow from it, for kernels that share them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace jit_passes::x86 {

// exp(d) = value * power for a number that is not above 0, where power is one of two. Sums and products that a compiler
// may join are joined here, so that all levels of vector units round alike.
struct Exponential {
  float value, power;
};

constexpr float kLeast = -87, kLog2E = 1.44269504F, kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
constexpr float kShift =
    12582912; // 1.5 * 2^23: added to a small number it leaves an integer in the last bits
// The series, of which |r| <= ln(2) / 2 needs no more.
constexpr float kTaylor[] = {1.0F / 5040, 1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1, 1};

inline __attribute__((always_inline)) Exponential exponentialOf(float d) {
  const float x = d < kLeast ? kLeast : d; // a NaN stays
  const float shifted = __builtin_fmaf(x, kLog2E, kShift);
  const float n = shifted - kShift;
  const float r = __builtin_fmaf(n, -kLn2Low, __builtin_fmaf(n, -kLn2High, x));
  float value = kTaylor[0];
#pragma GCC unroll 8 // else loops of this have loops in them, and are not vectors
  for (size_t i = 1; i < std::size(kTaylor); ++i) {
    value = __builtin_fmaf(value, r, kTaylor[i]);
  }
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kShift) + 127;
  return {value, d < kLeast ? 0 : std::bit_cast<float>(exponent << 23)};
}

// Quotients of 1 and exp(-|x|), so that no digits are lost. Sums and products that a compiler may join are joined here.
inline __attribute__((always_inline)) float sigmoidOf(float x) {
  const auto [value, power] = exponentialOf(-__builtin_fabsf(x));
  return (x < 0 ? value * power : 1) / __builtin_fmaf(value, power, 1);
}

inline __attribute__((always_inline)) float tanhOf(float x) {
  const auto [value, power] = exponentialOf(-2 * __builtin_fabsf(x));
  const float y = __builtin_fmaf(-value, power, 1) / __builtin_fmaf(value, power, 1);
  return x < 0 ? -y : y;
}

} // namespace jit_passes::x86
