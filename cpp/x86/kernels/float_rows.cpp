// Layer norm and softmax of float32, whose results are float32, codes, or both; and log softmax.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "exponential.h"
#include "floats.h"
#include "plain.h"
#include "to_codes.h"

namespace jit_passes::x86 {
namespace {

// Some rows, and the places of their results as float32 and as codes. Either place may be null.
template <size_t kRows>
struct Rows {
  const float* in[kRows];
  float* floats[kRows];
  uint8_t* codes[kRows];
};

// The step from sums to the factor, for all forms.
inline __attribute__((always_inline)) float normalFactor(float squares, int64_t count, double eps) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(squares) / static_cast<double>(count) + eps));
}

// Calls add(part, x) for each number with its part of the sum. Whole blocks of parts vectorize.
template <typename Add>
inline __attribute__((always_inline)) void addToParts(
    const float* in, int64_t count, float* parts, const Add& add) {
  int64_t i = 0;
  for (; i + kSumParts <= count; i += kSumParts) {
    for (int64_t j = 0; j < kSumParts; ++j) {
      parts[j] = add(parts[j], in[i + j]);
    }
  }
  for (int64_t j = 0; i + j < count; ++j) {
    parts[j] = add(parts[j], in[i + j]);
  }
}

// Stores results from a block, so that each loop is simple enough to vectorize. Either destination may be null.
inline __attribute__((always_inline)) void storeBlock(
    const float* y, int64_t count, const ToCodes& to, float* floats, uint8_t* codes) {
  const float inverse = to.inverse_scale, offset = to.offset;
  const ToCode code(to.range);
  for (int64_t j = 0; floats && j < count; ++j) {
    floats[j] = y[j];
  }
  for (int64_t j = 0; codes && j < count; ++j) {
    codes[j] = code(__builtin_fmaf(y[j], inverse, offset));
  }
}

JIT_PASSES_VECTORIZED void normalizePlain(
    const float* in, int64_t count, const LayerNormFloats& norm, float* floats, uint8_t* codes) {
  float parts[kSumParts] = {};
  if (norm.centred) {
    addToParts(in, count, parts, [](float part, float x) { return part + x; });
  }
  const float mean = sumOfParts(parts) / static_cast<float>(count);
  std::fill_n(parts, kSumParts, 0.0F);
  addToParts(in, count, parts, [&](float part, float x) { return __builtin_fmaf(x - mean, x - mean, part); });
  const float factor = normalFactor(sumOfParts(parts), count, norm.eps);
  const float *const weight = norm.weight, *const bias = norm.bias;
  float y[kSumParts];
  for (int64_t i = 0; i < count; i += kSumParts) {
    const int64_t some = count - i < kSumParts ? count - i : kSumParts;
    for (int64_t j = 0; j < some; ++j) {
      y[j] = __builtin_fmaf((in[i + j] - mean) * factor, weight[i + j], bias[i + j]);
    }
    storeBlock(y, some, norm.codes, floats ? floats + i : nullptr, codes ? codes + i : nullptr);
  }
}

// The number that is subtracted from all numbers of a row. With `hides` it is 0 for a row of minus infinities, whose
// sum then is 0.
float levelOf(float largest, bool hides) {
  return hides && largest == -std::numeric_limits<float>::infinity() ? 0 : largest;
}

float inverseOf(float sum) { return sum == 0 ? 0 : 1 / sum; }

JIT_PASSES_VECTORIZED void softmaxFloats(
    const float* in, int64_t count, const SoftmaxFloats& softmax, float* floats, uint8_t* codes) {
  float parts[kSumParts];
  std::fill_n(parts, kSumParts, -std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < count; i += kSumParts) {
    for (int64_t j = 0; j < std::min(kSumParts, count - i); ++j) {
      parts[j] = in[i + j] > parts[j] ? in[i + j] : parts[j];
    }
  }
  const float level = levelOf(*std::max_element(parts, parts + kSumParts), softmax.hides);
  std::fill_n(parts, kSumParts, 0.0F);
  addToParts(in, count, parts, [&](float part, float x) {
    const auto [value, power] = exponentialOf(x - level);
    return __builtin_fmaf(value, power, part);
  });
  const float factor = inverseOf(sumOfParts(parts));
  float y[kSumParts];
  for (int64_t i = 0; i < count; i += kSumParts) {
    const int64_t some = count - i < kSumParts ? count - i : kSumParts;
    for (int64_t j = 0; j < some; ++j) {
      const auto [value, power] = exponentialOf(in[i + j] - level);
      y[j] = value * power * factor;
    }
    storeBlock(y, some, softmax.codes, floats ? floats + i : nullptr, codes ? codes + i : nullptr);
  }
}

// The largest number of a row, and the sum of exp(x - largest).
struct LogScale {
  float largest, sum;
};

JIT_PASSES_VECTORIZED void measureRow(const float* in, int64_t count, LogScale& scale) {
  float parts[kSumParts];
  std::fill_n(parts, kSumParts, -std::numeric_limits<float>::infinity());
  addToParts(in, count, parts, [](float part, float x) { return x > part ? x : part; });
  const float largest = *std::max_element(parts, parts + kSumParts);
  std::fill_n(parts, kSumParts, 0.0F);
  addToParts(in, count, parts, [&](float part, float x) {
    const auto [value, power] = exponentialOf(x - largest);
    return __builtin_fmaf(value, power, part);
  });
  scale = {largest, sumOfParts(parts)};
}

// Sums are at least 1. A NaN stays NaN.
JIT_PASSES_VECTORIZED void logarithmsOf(const float* sums, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const auto logarithm = static_cast<float>(logOf(static_cast<double>(sums[i])));
    out[i] = sums[i] != sums[i] ? sums[i] : logarithm;
  }
}

JIT_PASSES_VECTORIZED void subtractBoth(
    const float* in, float first, float second, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = in[i] - first - second;
  }
}

#ifdef JIT_PASSES_HAS_VNNI

// The mask of the lanes, from `at` on, that are within `count`.
JIT_PASSES_VNNI_INLINE __mmask16 lanesAt(int64_t at, int64_t count) {
  return static_cast<__mmask16>(at < count ? firstLanes(count - at) : 0);
}

// The sum of all lanes, in the order of sumOfParts.
JIT_PASSES_VNNI_INLINE float sumOfFour(const __m512 (&sums)[4]) {
  const __m512 all = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
  const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), upper);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

JIT_PASSES_VNNI_INLINE void storeCodes(
    const __m512 (&y)[4], const ToCodes& to, const Rounding& rounding, uint8_t* out, __mmask64 lanes) {
  const __m512i codes = codesOf(y, to, rounding);
  if (lanes == ~uint64_t{0}) {
    _mm512_storeu_si512(out, codes);
  } else {
    _mm512_mask_storeu_epi8(out, lanes, codes);
  }
}

JIT_PASSES_VNNI_INLINE void storeCodes(__m512 y, const ToCodes& to, uint8_t* out, __mmask16 lanes) {
  const __m512 v = _mm512_fmadd_ps(y, _mm512_set1_ps(to.inverse_scale), _mm512_set1_ps(to.offset));
  _mm_mask_storeu_epi8(out, lanes, _mm512_cvtepi32_epi8(codesOf(v, to.range)));
}

// Calls add(sum, x, lanes) for the numbers of each row, with their parts of the sum.
template <size_t kRows, typename Add>
JIT_PASSES_VNNI_INLINE void addRows(
    const Rows<kRows>& rows, int64_t count, __m512 (&sums)[kRows][4], const Add& add) {
  for (auto& of_row : sums) {
    std::fill_n(of_row, 4, _mm512_setzero_ps());
  }
  const int64_t whole = count / kSumParts * kSumParts;
  for (int64_t i = 0; i < whole; i += kSumParts) {
    for (size_t row = 0; row < kRows; ++row) {
      for (int j = 0; j < 4; ++j) {
        sums[row][j] = add(row, sums[row][j], _mm512_loadu_ps(rows.in[row] + i + 16 * j), 0xFFFF);
      }
    }
  }
  for (int j = 0; j < 4 && whole < count; ++j) {
    const __mmask16 lanes = lanesAt(whole + 16 * j, count);
    for (size_t row = 0; row < kRows; ++row) {
      const __m512 x = _mm512_maskz_loadu_ps(lanes, rows.in[row] + whole + 16 * j);
      sums[row][j] = add(row, sums[row][j], x, lanes);
    }
  }
}

// Several rows at one time, since each row waits for its own sums.
template <size_t kRows>
JIT_PASSES_VNNI void normalizeVnni(const Rows<kRows>& rows, int64_t count, const LayerNormFloats& norm) {
  const Rounding rounding = roundingTo(norm.codes.range);
  __m512 sums[kRows][4], means[kRows], factors[kRows];
  std::fill_n(means, kRows, _mm512_setzero_ps());
  if (norm.centred) {
    addRows(rows, count, sums, [&](size_t, __m512 sum, __m512 x, __mmask16) JIT_PASSES_VNNI {
      return _mm512_add_ps(sum, x);
    });
    for (size_t row = 0; row < kRows; ++row) {
      means[row] = _mm512_set1_ps(sumOfFour(sums[row]) / static_cast<float>(count));
    }
  }
  addRows(rows, count, sums, [&](size_t row, __m512 sum, __m512 x, __mmask16 lanes) JIT_PASSES_VNNI {
    const __m512 d = _mm512_sub_ps(x, means[row]);
    return _mm512_mask3_fmadd_ps(d, d, sum, lanes);
  });
  for (size_t row = 0; row < kRows; ++row) {
    factors[row] = _mm512_set1_ps(normalFactor(sumOfFour(sums[row]), count, norm.eps));
  }
  const auto at = [&](size_t row, int64_t i, __mmask16 lanes) JIT_PASSES_VNNI {
    const __m512 d = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, rows.in[row] + i), means[row]);
    const __m512 y = _mm512_fmadd_ps(
        _mm512_mul_ps(d, factors[row]), _mm512_maskz_loadu_ps(lanes, norm.weight + i),
        _mm512_maskz_loadu_ps(lanes, norm.bias + i));
    if (rows.floats[row]) {
      _mm512_mask_storeu_ps(rows.floats[row] + i, lanes, y);
    }
    return y;
  };
  for (int64_t i = 0; i < count; i += 64) {
    const uint64_t lanes = firstLanes(count - i);
    for (size_t row = 0; row < kRows; ++row) {
      __m512 v[4];
      for (int j = 0; j < 4; ++j) {
        v[j] = at(row, i + 16 * j, static_cast<__mmask16>(lanes >> (16 * j)));
      }
      if (rows.codes[row]) {
        storeCodes(v, norm.codes, rounding, rows.codes[row] + i, lanes);
      }
    }
  }
}

// exp of 16 numbers, each as a value and a power of two.
struct FloatExponentials {
  __m512 value, power;
};

JIT_PASSES_VNNI_INLINE FloatExponentials exponentialsOf(__m512 d) {
  const __m512 least = _mm512_set1_ps(kLeast), shift = _mm512_set1_ps(kShift);
  const __m512 x = _mm512_max_ps(least, d); // a NaN stays
  const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(kLog2E), shift);
  const __m512 n = _mm512_sub_ps(shifted, shift);
  const __m512 r =
      _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2Low), _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2High), x));
  __m512 value = _mm512_set1_ps(kTaylor[0]);
  for (size_t i = 1; i < std::size(kTaylor); ++i) {
    value = _mm512_fmadd_ps(value, r, _mm512_set1_ps(kTaylor[i]));
  }
  const __m512i bias = _mm512_set1_epi32(127 - std::bit_cast<int32_t>(kShift));
  const __m512i exponent = _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(shifted), bias), 23);
  return {
      value, _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(d, least, _CMP_NLT_UQ), _mm512_castsi512_ps(exponent))};
}

// Calls take(j, i, lanes) for all numbers of a row: 16 numbers from i on, which belong to the parts from 16 j on.
template <typename Take>
JIT_PASSES_VNNI_INLINE void overParts(int64_t count, const Take& take) {
  const int64_t whole = count / kSumParts * kSumParts;
  for (int64_t i = 0; i < whole; i += kSumParts) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      take(j, i + 16 * j, static_cast<__mmask16>(-1));
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    if (whole + 16 * j < count) {
      take(j, whole + 16 * j, lanesAt(whole + 16 * j, count));
    }
  }
}

// A NaN does not count.
JIT_PASSES_VNNI_INLINE float largestOfRow(const float* in, int64_t count) {
  __m512 most[4];
  std::fill_n(most, 4, _mm512_set1_ps(-std::numeric_limits<float>::infinity()));
  overParts(count, [&](int j, int64_t i, __mmask16 lanes) JIT_PASSES_VNNI {
    most[j] = _mm512_max_ps(_mm512_mask_loadu_ps(most[j], lanes, in + i), most[j]);
  });
  return _mm512_reduce_max_ps(
      _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3])));
}

template <size_t kRows>
JIT_PASSES_VNNI void measureRowsVnni(const Rows<kRows>& rows, int64_t count, LogScale (&scales)[kRows]) {
  for (size_t row = 0; row < kRows; ++row) {
    const float* in = rows.in[row];
    const float largest = largestOfRow(in, count);
    const __m512 level = _mm512_set1_ps(largest);
    __m512 sums[4];
    std::fill_n(sums, 4, _mm512_setzero_ps());
    overParts(count, [&](int j, int64_t i, __mmask16 lanes) JIT_PASSES_VNNI {
      const auto [value, power] = exponentialsOf(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, in + i), level));
      sums[j] = _mm512_mask3_fmadd_ps(value, power, sums[j], lanes);
    });
    scales[row] = {largest, sumOfFour(sums)};
  }
}

template <size_t kRows>
JIT_PASSES_VNNI void subtractBothVnni(
    const Rows<kRows>& rows, int64_t count, const LogScale (&scales)[kRows], const float* logarithms) {
  for (size_t row = 0; row < kRows; ++row) {
    const float* in = rows.in[row];
    float* out = rows.floats[row];
    const __m512 first = _mm512_set1_ps(scales[row].largest), second = _mm512_set1_ps(logarithms[row]);
    overParts(count, [&](int, int64_t i, __mmask16 lanes) JIT_PASSES_VNNI {
      const __m512 x = _mm512_maskz_loadu_ps(lanes, in + i);
      _mm512_mask_storeu_ps(out + i, lanes, _mm512_sub_ps(_mm512_sub_ps(x, first), second));
    });
  }
}

JIT_PASSES_VNNI void softmaxFloatsVnni(
    const float* in, int64_t count, const SoftmaxFloats& softmax, float* floats, uint8_t* codes) {
  __m512 sums[4];
  const __m512 level = _mm512_set1_ps(levelOf(largestOfRow(in, count), softmax.hides));
  const auto at = [&](int64_t i, __mmask16 lanes) JIT_PASSES_VNNI {
    return exponentialsOf(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, in + i), level));
  };
  std::fill_n(sums, 4, _mm512_setzero_ps());
  for (int64_t i = 0; i < count; i += kSumParts) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      if (i + 16 * j >= count) {
        break;
      }
      const __mmask16 lanes = lanesAt(i + 16 * j, count);
      const auto [value, power] = at(i + 16 * j, lanes);
      sums[j] = _mm512_mask3_fmadd_ps(value, power, sums[j], lanes);
      if (floats) {
        _mm512_mask_storeu_ps(floats + i + 16 * j, lanes, _mm512_mul_ps(value, power));
      }
    }
  }
  const __m512 factor = _mm512_set1_ps(inverseOf(sumOfFour(sums)));
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 lanes = lanesAt(i, count);
    __m512 y;
    if (floats) {
      y = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, floats + i), factor);
      _mm512_mask_storeu_ps(floats + i, lanes, y);
    } else {
      const auto [value, power] = at(i, lanes);
      y = _mm512_mul_ps(_mm512_mul_ps(value, power), factor);
    }
    if (codes) {
      storeCodes(y, softmax.codes, codes + i, lanes);
    }
  }
}

#else
template <size_t kRows>
void normalizeVnni(const Rows<kRows>& rows, int64_t count, const LayerNormFloats& norm) {
  for (size_t row = 0; row < kRows; ++row) {
    normalizePlain(rows.in[row], count, norm, rows.floats[row], rows.codes[row]);
  }
}
constexpr auto softmaxFloatsVnni = softmaxFloats;
template <size_t kRows>
void measureRowsVnni(const Rows<kRows>&, int64_t, LogScale (&)[kRows]) {}
template <size_t kRows>
void subtractBothVnni(const Rows<kRows>&, int64_t, const LogScale (&)[kRows], const float*) {}
#endif

// The rows that layer norm computes at one time, and the rows whose logarithms are computed at one time.
constexpr size_t kTogether = 4, kLogarithms = 8;

template <size_t kRows>
Rows<kRows> rowsFrom(const Image& in, const Image* floats, const Image* codes, int64_t index, int64_t first) {
  Rows<kRows> rows{};
  for (size_t i = 0; i < kRows; ++i) {
    const int64_t x = first + static_cast<int64_t>(i);
    rows.in[i] = reinterpret_cast<const float*>(in.rowAt(index) + x * in.pixel);
    rows.floats[i] = floats ? reinterpret_cast<float*>(floats->rowAt(index) + x * floats->pixel) : nullptr;
    rows.codes[i] = codes ? codes->rowAt(index) + x * codes->pixel : nullptr;
  }
  return rows;
}

// Calls run(rows) for all pixels, `kMost` at a time, and for the remaining ones one by one.
template <size_t kMost, typename Run>
void overRows(
    const Image& in, const Image* floats, const Image* codes, int64_t begin, int64_t end, const Run& run) {
  for (int64_t index = begin; index < end; ++index) {
    int64_t x = 0;
    for (constexpr int64_t kStep = kMost; x + kStep <= in.width; x += kStep) {
      run(rowsFrom<kMost>(in, floats, codes, index, x));
    }
    for (; x < in.width; ++x) {
      run(rowsFrom<1>(in, floats, codes, index, x));
    }
  }
}

} // namespace

void SoftmaxFloats::run(
    const Image& in, const Image* floats, const Image* to, int64_t begin, int64_t end) const {
  const auto run = form >= Form::Avx512 ? softmaxFloatsVnni : softmaxFloats;
  overRows<1>(in, floats, to, begin, end, [&](const Rows<1>& rows) {
    run(rows.in[0], in.channels, *this, rows.floats[0], rows.codes[0]);
  });
}

void LogSoftmaxFloats::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  overRows<kLogarithms>(in, &out, nullptr, begin, end, [&]<size_t kRows>(const Rows<kRows>& rows) {
    const bool is_vector = form >= Form::Avx512;
    LogScale scales[kRows];
    if (is_vector) {
      measureRowsVnni(rows, in.channels, scales);
    }
    float sums[kRows], logarithms[kRows];
    for (size_t row = 0; row < kRows; ++row) {
      if (!is_vector) {
        measureRow(rows.in[row], in.channels, scales[row]);
      }
      sums[row] = scales[row].sum;
    }
    logarithmsOf(sums, kRows, logarithms);
    if (is_vector) {
      subtractBothVnni(rows, in.channels, scales, logarithms);
      return;
    }
    for (size_t row = 0; row < kRows; ++row) {
      subtractBoth(rows.in[row], scales[row].largest, logarithms[row], in.channels, rows.floats[row]);
    }
  });
}

void LayerNormFloats::run(
    const Image& in, const Image* floats, const Image* to, int64_t begin, int64_t end) const {
  const bool is_vector = form >= Form::Avx512;
  overRows<kTogether>(in, floats, to, begin, end, [&]<size_t kRows>(const Rows<kRows>& rows) {
    if (is_vector) {
      normalizeVnni(rows, in.channels, *this);
      return;
    }
    for (size_t row = 0; row < kRows; ++row) {
      normalizePlain(rows.in[row], in.channels, *this, rows.floats[row], rows.codes[row]);
    }
  });
}

} // namespace jit_passes::x86
