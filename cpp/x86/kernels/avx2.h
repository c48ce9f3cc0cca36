// Functions for all forms with registers of 256 bits.
#pragma once

#include "plain.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define JIT_PASSES_HAS_AVX2 1
#include <immintrin.h>

#define JIT_PASSES_AVX2 __attribute__((target("avx2,fma")))
#define JIT_PASSES_AVX2_INLINE JIT_PASSES_AVX2 inline __attribute__((always_inline))

namespace jit_passes::x86 {

JIT_PASSES_AVX2_INLINE __m256i load256(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

JIT_PASSES_AVX2_INLINE __m128i load128(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

// Also for functions with AVX-512, whose target may lack FMA.
__attribute__((target("avx"), always_inline)) inline float sumOfEight(__m256 eight) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Converts floats to codes like ToCode, 32 at a time. Packing saturates, so the zero point is added to int16, and
// `low` and `high` are applied to bytes. Only a float of 2^31 or more, which does not fit int32, needs a minimum of
// floats before. `order` restores the order, which packing within 128-bit lanes changes.
struct Rounding256 {
  JIT_PASSES_AVX2 explicit Rounding256(const CodeRange& range)
      : most(_mm256_set1_ps(static_cast<float>(range.high))),
        zero_point(_mm256_set1_epi16(static_cast<int16_t>(range.zero_point))),
        low(_mm256_set1_epi8(static_cast<char>(range.low))),
        high(_mm256_set1_epi8(static_cast<char>(range.high))),
        order(_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)) {}

  __m256 most;
  __m256i zero_point, low, high, order;
};

// 32 codes. The 8 codes of a register are four in each lane.
JIT_PASSES_AVX2_INLINE __m256i packCodes(const __m256 (&v)[4], const Rounding256& rounding) {
  __m256i whole[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    whole[i] = _mm256_cvtps_epi32(_mm256_min_ps(v[i], rounding.most));
  }
  const __m256i ab = _mm256_adds_epi16(_mm256_packs_epi32(whole[0], whole[1]), rounding.zero_point);
  const __m256i cd = _mm256_adds_epi16(_mm256_packs_epi32(whole[2], whole[3]), rounding.zero_point);
  const __m256i bytes = _mm256_packus_epi16(ab, cd);
  return _mm256_max_epu8(_mm256_min_epu8(bytes, rounding.high), rounding.low);
}

// 32 codes in the order of the registers.
JIT_PASSES_AVX2_INLINE __m256i roundToCodes(const __m256 (&v)[4], const Rounding256& rounding) {
  return _mm256_permutevar8x32_epi32(packCodes(v, rounding), rounding.order);
}

JIT_PASSES_AVX2_INLINE __m256 floatsOfSums(const int32_t* sums) { return _mm256_cvtepi32_ps(load256(sums)); }

JIT_PASSES_AVX2_INLINE __m256 eightFloatsOf(const uint8_t* codes) {
  const __m128i some = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(some));
}

// A mask with all bits of the first `count` of 32 bytes, which may be 0.
JIT_PASSES_AVX2_INLINE __m256i firstBytes(int64_t count) {
  alignas(64) static constexpr int8_t kOnes[64] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                                   -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                                   -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  return load256(kOnes + 32 - (count < 32 ? count : 32));
}

// Stores the first `count` of 32 codes.
JIT_PASSES_AVX2_INLINE void storeFirst(uint8_t* to, __m256i codes, int64_t count) {
  if (count >= 32) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), codes);
    return;
  }
  __m128i some = _mm256_castsi256_si128(codes);
  if (count & 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), some);
    some = _mm256_extracti128_si256(codes, 1), to += 16;
  }
  if (count & 8) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), some);
    some = _mm_srli_si128(some, 8), to += 8;
  }
  auto rest = static_cast<uint64_t>(_mm_cvtsi128_si64(some));
  for (int64_t i = 0; i < (count & 7); ++i, rest >>= 8) {
    to[i] = static_cast<uint8_t>(rest);
  }
}

// Stores the first `count` of 32 floats as codes, after the table if there is one.
JIT_PASSES_AVX2_INLINE void putCodes(
    uint8_t* to, const __m256 (&v)[4], const Rounding256& rounding, int64_t count, const uint8_t* table) {
  storeFirst(to, roundToCodes(v, rounding), count);
  lookUpInPlace(to, count, table);
}

// A table of 16 floats. A lookup takes eight at a time, by the lowest four bits of eight numbers.
struct Sixteen {
  JIT_PASSES_AVX2 explicit Sixteen(const float* from)
      : lower(_mm256_loadu_ps(from)), upper(_mm256_loadu_ps(from + 8)) {}

  JIT_PASSES_AVX2_INLINE __m256 at(__m256i index) const {
    const __m256 fourth_bit = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    return _mm256_blendv_ps(
        _mm256_permutevar8x32_ps(lower, index), _mm256_permutevar8x32_ps(upper, index), fourth_bit);
  }

  __m256 lower, upper;
};

} // namespace jit_passes::x86
#endif
