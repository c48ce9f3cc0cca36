// From float32 to codes, for AVX-512. See ToCodes.
#pragma once

#include "floats.h"
#include "vnni.h"

#ifdef JIT_PASSES_HAS_VNNI

namespace jit_passes::x86 {

// 64 codes in the order of the registers. `rounding` is for the range of `to`.
JIT_PASSES_VNNI_INLINE __m512i codesOf(const __m512 (&y)[4], const ToCodes& to, const Rounding& rounding) {
  const __m512 inverse = _mm512_set1_ps(to.inverse_scale), offset = _mm512_set1_ps(to.offset);
  __m512 v[4];
  for (int i = 0; i < 4; ++i) {
    v[i] = aboveLow(_mm512_fmadd_ps(y[i], inverse, offset), to.range);
  }
  return roundToCodes(v[0], v[1], v[2], v[3], rounding);
}

} // namespace jit_passes::x86

#endif
