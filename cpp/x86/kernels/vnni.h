// Functions for all AVX-512 VNNI forms.
#pragma once

#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define JIT_PASSES_HAS_VNNI 1
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
// g++ 12 warns of the unused operand of its own intrinsics as not initialized.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#define JIT_PASSES_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")))
#define JIT_PASSES_VNNI_INLINE JIT_PASSES_VNNI inline __attribute__((always_inline))

namespace jit_passes::x86 {

// Converts floats to codes like ToCode, 64 at a time. Packing saturates, at 0 and 255 in the end, so the zero point
// is added to int16, and `low` and `high` are applied to bytes. Only a float of 2^31 or more, which does not fit
// int32, needs a minimum of floats before. `direct`: no float is outside of int32, the zero point is 0, and all
// bytes are codes.
struct Rounding {
  __m512 most;
  __m512i zero_point, low, high, order;
  bool direct;
};

// `order` restores the order, which packing within 128-bit lanes changes.
JIT_PASSES_VNNI_INLINE Rounding roundingTo(const CodeRange& range, bool direct = false) {
  return {
      _mm512_set1_ps(static_cast<float>(range.high)),
      _mm512_set1_epi16(static_cast<int16_t>(range.zero_point)),
      _mm512_set1_epi8(static_cast<char>(range.low)),
      _mm512_set1_epi8(static_cast<char>(range.high)),
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
      direct};
}

JIT_PASSES_VNNI_INLINE __m512i clampCodes(__m512i codes, const Rounding& rounding) {
  return _mm512_max_epu8(_mm512_min_epu8(codes, rounding.high), rounding.low);
}

// Raises numbers to the lowest code. A NaN becomes that too: a maximum is the second operand if the first is a NaN.
JIT_PASSES_VNNI_INLINE __m512 aboveLow(__m512 v, const CodeRange& range) {
  return _mm512_max_ps(v, _mm512_set1_ps(static_cast<float>(range.low - range.zero_point)));
}

// Codes in 32 bits each.
JIT_PASSES_VNNI_INLINE __m512i codesOf(__m512 v, const CodeRange& range) {
  const __m512 high = _mm512_set1_ps(static_cast<float>(range.high - range.zero_point));
  const __m512i rounded = _mm512_cvtps_epi32(_mm512_min_ps(aboveLow(v, range), high));
  return _mm512_add_epi32(rounded, _mm512_set1_epi32(range.zero_point));
}

// Packs 32 numbers to int16, not clipped yet: four numbers of each register in each lane.
JIT_PASSES_VNNI_INLINE __m512i packHalf(__m512 a, __m512 b, bool direct, const Rounding& rounding) {
  if (direct) {
    return _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
  }
  a = _mm512_min_ps(a, rounding.most), b = _mm512_min_ps(b, rounding.most);
  const __m512i rounded = _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
  return _mm512_adds_epi16(rounded, rounding.zero_point);
}

// 64 codes. The 16 codes of a register are four in each lane.
JIT_PASSES_VNNI_INLINE __m512i joinHalves(__m512i ab, __m512i cd, bool direct, const Rounding& rounding) {
  const __m512i codes = _mm512_packus_epi16(ab, cd);
  return direct ? codes : clampCodes(codes, rounding);
}

JIT_PASSES_VNNI_INLINE __m512i packCodes(__m512 a, __m512 b, __m512 c, __m512 d, const Rounding& rounding) {
  const __m512i ab = packHalf(a, b, rounding.direct, rounding);
  return joinHalves(ab, packHalf(c, d, rounding.direct, rounding), rounding.direct, rounding);
}

// 64 codes in the order of a, b, c and d.
JIT_PASSES_VNNI_INLINE __m512i
roundToCodes(__m512 a, __m512 b, __m512 c, __m512 d, const Rounding& rounding) {
  return _mm512_permutexvar_epi32(rounding.order, packCodes(a, b, c, d, rounding));
}

JIT_PASSES_VNNI_INLINE __m512 floatsOf(__m128i codes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
}

// t[i], lane L, dword j  <->  t[j], lane L, dword i
JIT_PASSES_VNNI_INLINE void transposeDwords(__m512i (&t)[4]) {
  const __m512i a = _mm512_unpacklo_epi32(t[0], t[1]), b = _mm512_unpackhi_epi32(t[0], t[1]);
  const __m512i c = _mm512_unpacklo_epi32(t[2], t[3]), d = _mm512_unpackhi_epi32(t[2], t[3]);
  t[0] = _mm512_unpacklo_epi64(a, c);
  t[1] = _mm512_unpackhi_epi64(a, c);
  t[2] = _mm512_unpacklo_epi64(b, d);
  t[3] = _mm512_unpackhi_epi64(b, d);
}

// A table of 256 codes in four registers.
struct Table {
  __m512i quarters[4];
};

JIT_PASSES_VNNI_INLINE Table loadTable(const uint8_t* table) {
  return {
      {_mm512_loadu_si512(table), _mm512_loadu_si512(table + 64), _mm512_loadu_si512(table + 128),
       _mm512_loadu_si512(table + 192)}};
}

JIT_PASSES_VNNI_INLINE __m512i lookUp(__m512i codes, const Table& table) {
  const __m512i lower = _mm512_permutex2var_epi8(table.quarters[0], codes, table.quarters[1]);
  const __m512i upper = _mm512_permutex2var_epi8(table.quarters[2], codes, table.quarters[3]);
  return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), lower, upper);
}

// Some codes, each in 32 bits: register i of four has the codes that packing puts at place i of each lane.
JIT_PASSES_VNNI_INLINE __m512i spread(__m512i codes, int i) {
  const int zero = static_cast<int>(0x80808000);
  const __m512i index = _mm512_set4_epi32(zero + 4 * i + 3, zero + 4 * i + 2, zero + 4 * i + 1, zero + 4 * i);
  return _mm512_shuffle_epi8(codes, index);
}

// Whether no scaled sum, even with a residual, comes near 2^31, no zero point is added, and all bytes are codes.
JIT_PASSES_VNNI inline bool isDirect(const Requantize& requantize, int64_t channels) {
  int32_t multiplier = 0, offset = 0; // without signs, the bits of floats have the order of the floats
  for (int64_t c = 0; c < channels; ++c) {
    multiplier = std::max(multiplier, std::bit_cast<int32_t>(requantize.multiplier[c]) & INT32_MAX);
    offset = std::max(offset, std::bit_cast<int32_t>(requantize.offset[c]) & INT32_MAX);
  }
  const CodeRange& range = requantize.range;
  return range.zero_point == 0 && range.low == 0 && range.high == 255 &&
         multiplier <= std::bit_cast<int32_t>(0.5F) && offset <= std::bit_cast<int32_t>(float{1 << 29}) &&
         std::abs(requantize.residual_multiplier) <= float{1 << 20};
}

// The first `count` of 64, 32 or 16 lanes.
inline uint64_t firstLanes(int64_t count) { return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

} // namespace jit_passes::x86
#endif
