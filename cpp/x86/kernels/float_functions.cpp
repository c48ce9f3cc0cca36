// Functions of float32.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "avx2.h"
#include "exponential.h"
#include "floats.h"
#include "plain.h"
#include "vnni.h"

namespace jit_passes::x86 {
namespace {

JIT_PASSES_VECTORIZED void scaleFloats(const float* in, float factor, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = in[i] * factor;
  }
}

// A NaN is less than no number, so it stays NaN.
JIT_PASSES_VECTORIZED void clipFloats(const float* in, float low, float high, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float above = in[i] < low ? low : in[i];
    out[i] = above > high ? high : above;
  }
}

// Rises from 0 to 6 between -3 and 3. A NaN stays NaN.
inline __attribute__((always_inline)) float rampOf(float x) {
  const float moved = x + 3, above = moved < 0 ? 0 : moved;
  return above > 6 ? 6 : above;
}

JIT_PASSES_VECTORIZED void sigmoids(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = sigmoidOf(in[i]);
  }
}

JIT_PASSES_VECTORIZED void silus(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = in[i] * sigmoidOf(in[i]);
  }
}

JIT_PASSES_VECTORIZED void tanhs(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = tanhOf(in[i]);
  }
}

JIT_PASSES_VECTORIZED void ramps(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = rampOf(in[i]) / 6;
  }
}

JIT_PASSES_VECTORIZED void hardswishes(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = in[i] * rampOf(in[i]) / 6;
  }
}

JIT_PASSES_VECTORIZED void squares(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = in[i] * in[i];
  }
}

JIT_PASSES_VECTORIZED void roots(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = __builtin_sqrtf(in[i]);
  }
}

JIT_PASSES_VECTORIZED void inverseRoots(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = 1 / __builtin_sqrtf(in[i]);
  }
}

JIT_PASSES_VECTORIZED void inverses(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = 1 / in[i];
  }
}

JIT_PASSES_VECTORIZED void absolutes(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = __builtin_fabsf(in[i]);
  }
}

JIT_PASSES_VECTORIZED void leakyRelus(const float* in, float slope, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = in[i] > 0 ? in[i] : in[i] * slope;
  }
}

JIT_PASSES_VECTORIZED void elus(const float* in, float alpha, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float below = in[i] > 0 ? 0 : in[i];
    out[i] = in[i] > 0 ? in[i] : alpha * expMinusOneOf(below);
  }
}

JIT_PASSES_VECTORIZED void exponentials(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = expOf(in[i]);
  }
}

// log(1 + exp(z)) = max(z, 0) + log(1 + exp(-|z|))
JIT_PASSES_VECTORIZED void softpluses(
    const float* in, float beta, float threshold, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float z = in[i] * beta, above = z < 0 ? 0 : z;
    const auto [value, power] = exponentialOf(-__builtin_fabsf(z));
    const float soft = (above + logOnePlusOf(value * power)) / beta;
    out[i] = z > threshold ? in[i] : soft;
  }
}

// With u = exp(-|x|), tanh(log(1 + exp(x))) is (1 + 2 u) / (1 + 2 u + 2 u^2) or u (2 + u) / (2 + u (2 + u)).
JIT_PASSES_VECTORIZED void mishes(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto [value, power] = exponentialOf(-__builtin_fabsf(in[i]));
    const float u = value * power;
    const float top = in[i] < 0 ? u * (2 + u) : __builtin_fmaf(2, u, 1);
    out[i] = in[i] * (top / (in[i] < 0 ? 2 + top : __builtin_fmaf(2 * u, u, top)));
  }
}

JIT_PASSES_VECTORIZED void cubes(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = in[i] * in[i] * in[i];
  }
}

// |x|^p = exp(p log|x|), unless x is 0 or infinite. For odd p the result has the sign of x. If p is no whole number,
// a negative x gives NaN, except for minus infinity.
JIT_PASSES_VECTORIZED void powers(const float* in, float exponent, float* out, int64_t count) {
  const double p = exponent;
  const bool whole = std::floor(p) == p, odd = whole && std::floor(p / 2) * 2 != p;
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  const float of_zero = p > 0 ? 0 : infinity, of_infinity = p > 0 ? infinity : 0;
  const float sign = odd ? -1 : 1, below = whole ? sign : nan;
  constexpr double kMost = 200; // beyond it, results are 0 or infinite in float32
  for (int64_t i = 0; i < count; ++i) {
    const float x = in[i], a = __builtin_fabsf(x);
    const double product = p * logOf(static_cast<double>(a));
    const double above = product < -kMost ? -kMost : product;
    const auto power = static_cast<float>(wideExpOf(above > kMost ? kMost : above));
    const float finite = x < 0 ? power * below : power;
    const float end = std::bit_cast<int32_t>(x) < 0 ? sign * (a == 0 ? of_zero : of_infinity)
                                                    : (a == 0 ? of_zero : of_infinity);
    out[i] = x != x ? x : a == 0 || a == infinity ? end : finite;
  }
}

// The probability P(-a) for 0 <= a < 6, a polynomial in each of 16 intervals. Beyond 6 it is 0: 1 - P(a) is below
// 1e-9.
constexpr int kIntervals = 16, kDegree = 5;
constexpr float kTailEnd = 6, kPerUnit = kIntervals / kTailEnd;
constexpr float kLastPlace = 15.999999F; // the largest float below 16

struct alignas(64) Tail {
  float coefficients[kDegree + 1][kIntervals];

  // Interpolates at the Chebyshev nodes of each interval by Newton's formula, and expands the result in powers.
  template <typename Probability>
  explicit Tail(Probability probability) {
    for (int interval = 0; interval < kIntervals; ++interval) {
      double nodes[kDegree + 1], newton[kDegree + 1], powers[kDegree + 1] = {};
      for (int i = 0; i <= kDegree; ++i) {
        nodes[i] = 0.5 - 0.5 * std::cos((2 * i + 1) * 3.14159265358979323846 / (2 * kDegree + 2));
        newton[i] = probability((interval + nodes[i]) / kPerUnit);
      }
      for (int order = 1; order <= kDegree; ++order) {
        for (int i = kDegree; i >= order; --i) {
          newton[i] = (newton[i] - newton[i - 1]) / (nodes[i] - nodes[i - order]);
        }
      }
      for (int i = kDegree; i >= 0; --i) { // powers = powers * (r - nodes[i]) + newton[i]
        for (int j = kDegree; j > 0; --j) {
          powers[j] = powers[j - 1] - nodes[i] * powers[j];
        }
        powers[0] = newton[i] - nodes[i] * powers[0];
      }
      for (int i = 0; i <= kDegree; ++i) {
        coefficients[i][interval] = static_cast<float>(powers[i]);
      }
    }
  }
};

const Tail& normalTail() {
  static const Tail tail([](double a) { return std::erfc(a / std::sqrt(2.0)) / 2; });
  return tail;
}

const Tail& tanhTail() {
  static const Tail tail([](double a) {
    return 1 / (1 + std::exp(2 * std::sqrt(2 / 3.14159265358979323846) * (a + 0.044715 * a * a * a)));
  });
  return tail;
}

JIT_PASSES_VECTORIZED void geluPlain(const float* in, const Tail& tail, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = in[i], a = __builtin_fabsf(x), at = a * kPerUnit;
    const float place = at < kLastPlace ? at : kLastPlace;
    const auto interval = static_cast<int32_t>(place);
    const float r = place - static_cast<float>(interval);
    float p = tail.coefficients[kDegree][interval];
    for (int j = kDegree - 1; j >= 0; --j) {
      p = __builtin_fmaf(p, r, tail.coefficients[j][interval]);
    }
    p = a < kTailEnd ? p : 0;
    out[i] = x * (x > 0 ? 1 - p : p);
  }
}

#ifdef JIT_PASSES_HAS_VNNI

JIT_PASSES_VNNI void geluVnni(const float* in, const Tail& tail, float* out, int64_t count) {
  __m512 coefficients[kDegree + 1];
  for (int j = 0; j <= kDegree; ++j) {
    coefficients[j] = _mm512_load_ps(tail.coefficients[j]);
  }
  const __m512 end = _mm512_set1_ps(kTailEnd), per_unit = _mm512_set1_ps(kPerUnit);
  const __m512 last = _mm512_set1_ps(kLastPlace), one = _mm512_set1_ps(1);
  for (int64_t i = 0; i < count; i += 16) {
    const auto lanes = static_cast<__mmask16>(firstLanes(std::min<int64_t>(count - i, 16)));
    const __m512 x = _mm512_maskz_loadu_ps(lanes, in + i), a = _mm512_abs_ps(x);
    const __m512 place = _mm512_min_ps(_mm512_mul_ps(a, per_unit), last); // of a NaN, the last one
    const __m512i interval = _mm512_cvttps_epi32(place);
    const __m512 r = _mm512_sub_ps(place, _mm512_cvtepi32_ps(interval));
    __m512 p = _mm512_permutexvar_ps(interval, coefficients[kDegree]);
    for (int j = kDegree - 1; j >= 0; --j) {
      p = _mm512_fmadd_ps(p, r, _mm512_permutexvar_ps(interval, coefficients[j]));
    }
    p = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, end, _CMP_LT_OQ), p);
    p = _mm512_mask_sub_ps(p, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), one, p);
    _mm512_mask_storeu_ps(out + i, lanes, _mm512_mul_ps(x, p));
  }
}

#else
constexpr auto geluVnni = geluPlain;
#endif

#ifdef JIT_PASSES_HAS_AVX2

JIT_PASSES_AVX2_INLINE __m256 eightGelus(__m256 x, const Tail& tail) {
  const __m256 a = _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x);
  const __m256 place = // of a NaN, the last one
      _mm256_min_ps(_mm256_mul_ps(a, _mm256_set1_ps(kPerUnit)), _mm256_set1_ps(kLastPlace));
  const __m256i interval = _mm256_cvttps_epi32(place);
  const __m256 r = _mm256_sub_ps(place, _mm256_cvtepi32_ps(interval));
  __m256 p = Sixteen(tail.coefficients[kDegree]).at(interval);
#pragma GCC unroll 8
  for (int j = kDegree - 1; j >= 0; --j) {
    p = _mm256_fmadd_ps(p, r, Sixteen(tail.coefficients[j]).at(interval));
  }
  p = _mm256_and_ps(p, _mm256_cmp_ps(a, _mm256_set1_ps(kTailEnd), _CMP_LT_OQ));
  const __m256 positive = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ);
  return _mm256_mul_ps(x, _mm256_blendv_ps(p, _mm256_sub_ps(_mm256_set1_ps(1), p), positive));
}

JIT_PASSES_AVX2 void geluAvx2(const float* in, const Tail& tail, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(out + i, eightGelus(_mm256_loadu_ps(in + i), tail));
  }
  if (i < count) {
    float rest[8] = {};
    std::copy_n(in + i, count - i, rest);
    _mm256_storeu_ps(rest, eightGelus(_mm256_loadu_ps(rest), tail));
    std::copy_n(rest, count - i, out + i);
  }
}

#else
constexpr auto geluAvx2 = geluPlain;
#endif

} // namespace

void FloatFunction::run(const float* in, float* out, int64_t count) const {
  const auto gelu = form == Form::Plain ? geluPlain : form >= Form::Avx512 ? geluVnni : geluAvx2;
  switch (which) {
    case Scale: return scaleFloats(in, first, out, count);
    case Clip: return clipFloats(in, first, second, out, count);
    case Gelu: return gelu(in, normalTail(), out, count);
    case GeluTanh: return gelu(in, tanhTail(), out, count);
    case Sigmoid: return sigmoids(in, out, count);
    case Silu: return silus(in, out, count);
    case Tanh: return tanhs(in, out, count);
    case HardSigmoid: return ramps(in, out, count);
    case HardSwish: return hardswishes(in, out, count);
    case Square: return squares(in, out, count);
    case Root: return roots(in, out, count);
    case InverseRoot: return inverseRoots(in, out, count);
    case Inverse: return inverses(in, out, count);
    case Absolute: return absolutes(in, out, count);
    case LeakyRelu: return leakyRelus(in, first, out, count);
    case Elu: return elus(in, first, out, count);
    case Exp: return exponentials(in, out, count);
    case Softplus: return softpluses(in, first, second, out, count);
    case Mish: return mishes(in, out, count);
    case Cube: return cubes(in, out, count);
    case Power: return powers(in, first, out, count);
    default:
      if (in != out) {
        std::copy_n(in, count, out);
      }
  }
}

void FloatFunction::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const int64_t bytes = out.channels * int64_t(sizeof(float));
  const bool dense = in.pixel == bytes && out.pixel == bytes;
  const int64_t pixels = dense ? 1 : out.width, count = dense ? out.width * out.channels : out.channels;
  for (int64_t index = begin; index < end; ++index) {
    for (int64_t x = 0; x < pixels; ++x) {
      run(reinterpret_cast<const float*>(in.rowAt(index) + x * in.pixel),
          reinterpret_cast<float*>(out.rowAt(index) + x * out.pixel), count);
    }
  }
}

} // namespace jit_passes::x86
