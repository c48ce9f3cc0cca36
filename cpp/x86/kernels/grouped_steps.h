// Steps of grouped.h in AVX-512.
#pragma once

#include "vnni.h"

#ifdef JIT_PASSES_HAS_VNNI

namespace jit_passes::x86 {

constexpr int64_t kDecodedStep = 16 * 32; // bytes of a step of 8 bits

// The codes of an octet of 4 bits for 16 outputs: its lower and its upper quad.
struct OctetOfCodes {
  __m512i lower, upper;
};

JIT_PASSES_VNNI_INLINE OctetOfCodes octetOf(const uint8_t* step, int octet) {
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i codes =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
  const __m512i bytes = _mm512_loadu_si512(step + 64 * octet);
  return {
      _mm512_shuffle_epi8(codes, _mm512_and_si512(bytes, mask)),
      _mm512_shuffle_epi8(codes, _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask))};
}

// Decodes a step of 4 bits to a step of 8 bits.
JIT_PASSES_VNNI_INLINE void decodeStepToBytes(const uint8_t* step, uint8_t* to) {
#pragma GCC unroll 4
  for (int octet = 0; octet < 4; ++octet, to += 128) {
    const auto [lower, upper] = octetOf(step, octet);
    _mm512_store_si512(to, lower);
    _mm512_store_si512(to + 64, upper);
  }
}

} // namespace jit_passes::x86

#endif
