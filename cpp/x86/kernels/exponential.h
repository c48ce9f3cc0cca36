// The exponential of float32, and functions that follow from it, for kernels that share them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace jit_passes::x86 {

// exp(d) = value * power for d <= 0, where power is a power of two. Sums and products that a compiler may fuse are
// fused explicitly here, so that all levels of vector instructions round alike.
struct Exponential {
  float value, power;
};

constexpr float kLeast = -87, kLog2E = 1.44269504F, kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
constexpr float kShift =
    12582912; // 1.5 * 2^23: added to a small number it leaves an integer in the last bits
// The terms of the series that |r| <= ln(2) / 2 needs.
constexpr float kTaylor[] = {1.0F / 5040, 1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1, 1};

// x = n ln(2) + r, with n in the last bits of `shifted`.
struct Reduced {
  float shifted, r;
};

inline __attribute__((always_inline)) Reduced reducedOf(float x) {
  const float shifted = __builtin_fmaf(x, kLog2E, kShift);
  const float n = shifted - kShift;
  return {shifted, __builtin_fmaf(n, -kLn2Low, __builtin_fmaf(n, -kLn2High, x))};
}

inline __attribute__((always_inline)) int32_t powerIn(float shifted) {
  return std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kShift);
}

// The first terms of the series in Horner's form.
template <size_t kTerms>
inline __attribute__((always_inline)) float seriesOf(float r) {
  float value = kTaylor[0];
#pragma GCC unroll 8 // otherwise loops around this are nested, and do not vectorize
  for (size_t i = 1; i < kTerms; ++i) {
    value = __builtin_fmaf(value, r, kTaylor[i]);
  }
  return value;
}

inline __attribute__((always_inline)) Exponential exponentialOf(float d) {
  const float x = d < kLeast ? kLeast : d; // a NaN stays
  const auto [shifted, r] = reducedOf(x);
  const uint32_t exponent = powerIn(shifted) + 127;
  return {seriesOf<8>(r), d < kLeast ? 0 : std::bit_cast<float>(exponent << 23)};
}

// exp(x) for any number, with two factors, since one power of two may overflow or underflow.
inline __attribute__((always_inline)) float expOf(float x) {
  const float above = x < -104 ? -104 : x, within = above > 89 ? 89 : above; // a NaN stays
  const auto [shifted, r] = reducedOf(within);
  const int32_t power = powerIn(shifted), half = power >> 1;
  const float one = std::bit_cast<float>((half + 127) << 23);
  const float other = std::bit_cast<float>((power - half + 127) << 23);
  return seriesOf<8>(r) * one * other;
}

// exp(x) - 1 for x <= 0. The series without its first term loses no digits.
inline __attribute__((always_inline)) float expMinusOneOf(float x) {
  const float within = x < -30 ? -30 : x; // a NaN stays
  const auto [shifted, r] = reducedOf(within);
  const float power = std::bit_cast<float>((powerIn(shifted) + 127) << 23);
  return __builtin_fmaf(seriesOf<7>(r) * r, power, power - 1);
}

// log(1 + u) for 0 <= u <= 1: 2 artanh(s) with s = u / (2 + u), which is at most 1/3.
inline __attribute__((always_inline)) float logOnePlusOf(float u) {
  const float s = u / (2 + u), square = s * s;
  float sum = 1.0F / 15;
#pragma GCC unroll 8
  for (int odd = 13; odd > 0; odd -= 2) {
    sum = __builtin_fmaf(sum, square, 1.0F / static_cast<float>(odd));
  }
  return 2 * s * sum;
}

// log(x) of a positive normal number, in double to 13 digits: x = 2^n m, with m between the roots of 1/2 and of 2,
// and log(m) = 2 artanh(s) with s = (m - 1) / (m + 1). The result for infinities and NaNs is undefined.
inline __attribute__((always_inline)) double logOf(double x) {
  constexpr uint64_t kOne = 1023, kLeastBits = 0x3FE6A09E667F3BCD; // the root of 1/2
  constexpr double kBits = 4503599627370496;                       // 2^52: a whole number is in its last bits
  const uint64_t bits = std::bit_cast<uint64_t>(x),
                 exponent = (bits - kLeastBits + (kOne << 52)) >> 52; // n + 1023
  const double m = std::bit_cast<double>(bits - ((exponent - kOne) << 52));
  const double n = std::bit_cast<double>(std::bit_cast<uint64_t>(kBits) | exponent) - (kBits + kOne);
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 1.0 / 17;
#pragma GCC unroll 8
  for (int odd = 15; odd > 0; odd -= 2) {
    sum = __builtin_fma(sum, square, 1.0 / odd);
  }
  return __builtin_fma(n, 0.69314718055994530942, 2 * s * sum);
}

constexpr double kWideTaylor[] = {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
                                  1.0 / 24,      1.0 / 6,      0.5,         1,          1};

// exp(x) to 11 digits, for |x| <= 700. A NaN stays NaN.
inline __attribute__((always_inline)) double wideExpOf(double x) {
  constexpr double kWideShift = 6755399441055744; // 1.5 * 2^52
  const double shifted = __builtin_fma(x, 1.44269504088896340736, kWideShift), n = shifted - kWideShift;
  const double r = __builtin_fma(n, -0.69314718055994530942, x);
  double value = kWideTaylor[0];
#pragma GCC unroll 16
  for (size_t i = 1; i < std::size(kWideTaylor); ++i) {
    value = __builtin_fma(value, r, kWideTaylor[i]);
  }
  const int64_t power = std::bit_cast<int64_t>(shifted) - std::bit_cast<int64_t>(kWideShift);
  return value * std::bit_cast<double>((power + 1023) << 52);
}

// Quotients of 1 and exp(-|x|), so that no digits are lost. Sums and products that a compiler may fuse are fused
// here.
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
