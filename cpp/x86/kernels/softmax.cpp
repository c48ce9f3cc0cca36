// Softmax over channels.
//
// An exponential is the product of two numbers from tables of 16, which are permuted from one register of 512 bits,
// or two of 256.
#include "attention.h"

#include <algorithm>
#include <cmath>

#include "avx2.h"
#include "plain.h"
#include "vnni.h"

namespace jit_passes::x86 {
namespace {

JIT_PASSES_VECTORIZED void softmaxPlain(
    const uint8_t* in, int64_t count, const Softmax& softmax, uint8_t* out) {
  uint8_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, in[i]);
  }
  float parts[kSumParts] = {};
  for (int64_t i = 0; i < count; ++i) {
    const int d = largest - in[i];
    float& part = parts[i % kSumParts];
    part = __builtin_fmaf(softmax.high[d / 16], softmax.low[d % 16], part);
  }
  const float factor = softmax.inverse_scale / sumOfParts(parts);
  float scaled[16];
  for (int i = 0; i < 16; ++i) {
    scaled[i] = softmax.high[i] * factor;
  }
  const ToCode code(softmax.range);
  for (int64_t i = 0; i < count; ++i) {
    const int d = largest - in[i];
    out[i] = code(__builtin_fmaf(scaled[d / 16], softmax.low[d % 16], softmax.offset));
  }
}

#ifdef JIT_PASSES_HAS_VNNI

// The exponentials of 16 codes, as two factors. Codes that do not exist count as 0, and give some exponential.
struct Exponentials {
  __m512 high, low;
};

JIT_PASSES_VNNI_INLINE Exponentials
exponentials(const uint8_t* codes, __mmask16 lanes, __m128i largest, const __m512& high, const __m512& low) {
  const __m512i d = _mm512_cvtepu8_epi32(_mm_sub_epi8(largest, _mm_maskz_loadu_epi8(lanes, codes)));
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(d, 4), high), _mm512_permutexvar_ps(d, low)};
}

JIT_PASSES_VNNI_INLINE uint8_t largestOf(const uint8_t* in, int64_t count) {
  __m512i largest = _mm512_setzero_si512();
  for (int64_t i = 0; i < count; i += kSumParts) {
    largest = _mm512_max_epu8(
        largest, _mm512_maskz_loadu_epi8(static_cast<__mmask64>(firstLanes(count - i)), in + i));
  }
  const __m256i half =
      _mm256_max_epu8(_mm512_castsi512_si256(largest), _mm512_extracti64x4_epi64(largest, 1));
  const __m128i quarter = _mm_max_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // An instruction finds the smallest of eight numbers of 16 bits. Complements of the maxima of pairs are its
  // operand.
  const __m128i inverted = _mm_xor_si128(quarter, _mm_set1_epi8(-1));
  const __m128i pairs =
      _mm_and_si128(_mm_min_epu8(inverted, _mm_srli_epi16(inverted, 8)), _mm_set1_epi16(0xFF));
  return static_cast<uint8_t>(~_mm_cvtsi128_si32(_mm_minpos_epu16(pairs)));
}

JIT_PASSES_VNNI_INLINE float sumOf(__m512 parts) {
  const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(parts), 1));
  return sumOfEight(_mm256_add_ps(_mm512_castps512_ps256(parts), upper));
}

// A row in blocks of 64 codes. The last block has `count` codes.
struct SoftmaxRow {
  __m128i largest;
  __m512 high, low, scaled, offset;
  Rounding rounding;
};

template <bool kFull>
JIT_PASSES_VNNI_INLINE void addExponentials(
    const uint8_t* in, int64_t count, const SoftmaxRow& row, __m512 (&sums)[4]) {
#pragma GCC unroll 4
  for (int64_t i = 0; i < 4; ++i) {
    if (!kFull && 16 * i >= count) {
      break;
    }
    const __mmask16 lanes = kFull ? 0xFFFF : firstLanes(count) >> (16 * i) & 0xFFFF;
    const Exponentials e = exponentials(in + 16 * i, lanes, row.largest, row.high, row.low);
    sums[i] = _mm512_mask3_fmadd_ps(e.high, e.low, sums[i], lanes);
  }
}

template <bool kFull>
JIT_PASSES_VNNI_INLINE void storeShares(
    const uint8_t* in, int64_t count, const SoftmaxRow& row, uint8_t* out) {
  __m512 v[4] = {};
#pragma GCC unroll 4
  for (int64_t i = 0; i < 4; ++i) {
    if (!kFull && 16 * i >= count) {
      break;
    }
    const __mmask16 lanes = kFull ? 0xFFFF : firstLanes(count) >> (16 * i) & 0xFFFF;
    const Exponentials e = exponentials(in + 16 * i, lanes, row.largest, row.scaled, row.low);
    v[i] = _mm512_fmadd_ps(e.high, e.low, row.offset);
  }
  const __m512i codes = roundToCodes(v[0], v[1], v[2], v[3], row.rounding);
  if constexpr (kFull) {
    _mm512_storeu_si512(out, codes);
  } else {
    _mm512_mask_storeu_epi8(out, firstLanes(count), codes);
  }
}

JIT_PASSES_VNNI void softmaxVnni(const uint8_t* in, int64_t count, const Softmax& softmax, uint8_t* out) {
  SoftmaxRow row{
      _mm_set1_epi8(static_cast<char>(largestOf(in, count))),
      _mm512_loadu_ps(softmax.high),
      _mm512_loadu_ps(softmax.low),
      {},
      _mm512_set1_ps(softmax.offset),
      roundingTo(softmax.range)};
  __m512 sums[4] = {};
  int64_t i = 0;
  for (; i + kSumParts <= count; i += kSumParts) {
    addExponentials<true>(in + i, kSumParts, row, sums);
  }
  if (i < count) {
    addExponentials<false>(in + i, count - i, row, sums);
  }
  const float sum = sumOf(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
  row.scaled = _mm512_mul_ps(row.high, _mm512_set1_ps(softmax.inverse_scale / sum));
  for (i = 0; i + kSumParts <= count; i += kSumParts) {
    storeShares<true>(in + i, kSumParts, row, out + i);
  }
  if (i < count) {
    storeShares<false>(in + i, count - i, row, out + i);
  }
}

#else
constexpr auto softmaxVnni = softmaxPlain;
#endif

#ifdef JIT_PASSES_HAS_AVX2

// The differences of the largest code and eight codes.
JIT_PASSES_AVX2_INLINE __m256i eightBelow(__m128i largest, const uint8_t* codes) {
  return _mm256_cvtepu8_epi32(
      _mm_sub_epi8(largest, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))));
}

JIT_PASSES_AVX2_INLINE uint8_t largestOf32(const uint8_t* in, int64_t count) {
  __m256i largest = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += 32) {
    const __m256i some = load256(in + i);
    largest = _mm256_max_epu8(largest, _mm256_and_si256(firstBytes(count - i), some));
  }
  __m128i most = _mm_max_epu8(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  most = _mm_max_epu8(most, _mm_srli_si128(most, 8));
  most = _mm_max_epu8(most, _mm_srli_si128(most, 4));
  most = _mm_max_epu8(most, _mm_srli_si128(most, 2));
  most = _mm_max_epu8(most, _mm_srli_si128(most, 1));
  return static_cast<uint8_t>(_mm_cvtsi128_si32(most));
}

// Bytes after the last code are read; their exponentials are 0.
JIT_PASSES_AVX2 float sumOfExponentials(
    const uint8_t* in, int64_t count, __m128i largest, const Sixteen& high, const Sixteen& low) {
  __m256 sums[8] = {};
  for (int64_t first = 0; first < count; first += kSumParts) {
    const __m256i exist[2] = {
        firstBytes(count - first), firstBytes(count - first > 32 ? count - first - 32 : 0)};
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m256i d = eightBelow(largest, in + first + 8 * i);
      const __m128i half =
          i % 4 < 2 ? _mm256_castsi256_si128(exist[i / 4]) : _mm256_extracti128_si256(exist[i / 4], 1);
      const __m256i lanes = _mm256_cvtepi8_epi32(i % 2 ? _mm_srli_si128(half, 8) : half);
      const __m256 value = _mm256_and_ps(high.at(_mm256_srli_epi32(d, 4)), _mm256_castsi256_ps(lanes));
      sums[i] = _mm256_fmadd_ps(value, low.at(d), sums[i]);
    }
  }
  const __m256 lower = _mm256_add_ps(_mm256_add_ps(sums[0], sums[2]), _mm256_add_ps(sums[4], sums[6]));
  const __m256 upper = _mm256_add_ps(_mm256_add_ps(sums[1], sums[3]), _mm256_add_ps(sums[5], sums[7]));
  return sumOfEight(_mm256_add_ps(lower, upper));
}

JIT_PASSES_AVX2 void softmaxAvx2(const uint8_t* in, int64_t count, const Softmax& softmax, uint8_t* out) {
  const __m128i largest = _mm_set1_epi8(static_cast<char>(largestOf32(in, count)));
  Sixteen high(softmax.high);
  const Sixteen low(softmax.low);
  const float sum = sumOfExponentials(in, count, largest, high, low);
  const __m256 factor = _mm256_set1_ps(softmax.inverse_scale / sum), offset = _mm256_set1_ps(softmax.offset);
  high.lower = _mm256_mul_ps(high.lower, factor), high.upper = _mm256_mul_ps(high.upper, factor);
  const Rounding256 rounding(softmax.range);
  for (int64_t first = 0; first < count; first += 32) {
    __m256 v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i d = eightBelow(largest, in + first + 8 * i);
      v[i] = _mm256_fmadd_ps(high.at(_mm256_srli_epi32(d, 4)), low.at(d), offset);
    }
    storeFirst(out + first, roundToCodes(v, rounding), count - first);
  }
}

#else
constexpr auto softmaxAvx2 = softmaxPlain;
#endif

} // namespace

Softmax::Softmax(double in_scale, double out_scale, Form form_of)
    : inverse_scale(static_cast<float>(1 / out_scale)), form(form_of) {
  for (int i = 0; i < 16; ++i) {
    high[i] = static_cast<float>(std::exp(-16 * i * in_scale));
    low[i] = static_cast<float>(std::exp(-i * in_scale));
  }
}

void Softmax::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const auto run = form == Form::Plain ? softmaxPlain : form >= Form::Avx512 ? softmaxVnni : softmaxAvx2;
  for (int64_t index = begin; index < end; ++index) {
    for (int64_t x = 0; x < out.width; ++x) {
      run(in.rowAt(index) + x * in.pixel, out.channels, *this, out.rowAt(index) + x * out.pixel);
    }
  }
}

} // namespace jit_passes::x86
