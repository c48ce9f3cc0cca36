// Layer norm over channels.
#include "attention.h"

#include <algorithm>

#include "plain.h"
#include "vnni.h"

namespace jit_passes::x86 {
namespace {

JIT_PASSES_VECTORIZED void layerNormPlain(
    const uint8_t* in, int64_t count, const LayerNorm& norm, uint8_t* out) {
  int32_t sum = 0, squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int16_t x = in[i]; // 16 bits, since their products are added in pairs
    sum += x;
    squares += x * x;
  }
  const Normal normal = normalOf(sum, squares, count, norm.eps);
  const float factor = normal.factor, offset = normal.offset;
  const ToCode code(norm.range);
  const float *const multipliers = norm.multiplier, *const offsets = norm.offset;
  for (int64_t i = 0; i < count; ++i) {
    const float x = __builtin_fmaf(in[i], factor, offset);
    out[i] = code(__builtin_fmaf(x, multipliers[i], offsets[i]));
  }
}

#ifdef JIT_PASSES_HAS_VNNI

JIT_PASSES_VNNI_INLINE Normal normalOfRow(const uint8_t* in, int64_t count, double eps) {
  const __m512i zero = _mm512_setzero_si512();
  __m512i sums = zero, squares = zero;
  for (int64_t i = 0; i < count; i += 64) {
    const __m512i x = _mm512_maskz_loadu_epi8(static_cast<__mmask64>(firstLanes(count - i)), in + i);
    sums = _mm512_add_epi64(sums, _mm512_sad_epu8(x, zero));
    const __m512i lower = _mm512_unpacklo_epi8(x, zero), upper = _mm512_unpackhi_epi8(x, zero);
    squares = _mm512_dpwssd_epi32(squares, lower, lower);
    squares = _mm512_dpwssd_epi32(squares, upper, upper);
  }
  return normalOf(_mm512_reduce_add_epi64(sums), _mm512_reduce_add_epi32(squares), count, eps);
}

// A block of 64 codes from `at` on. The last block has `count` codes.
template <bool kFull>
JIT_PASSES_VNNI_INLINE void storeNormal(
    const uint8_t* in, int64_t at, int64_t count, const Normal& normal, const LayerNorm& norm,
    const Rounding& rounding, uint8_t* out) {
  const __m512 factor = _mm512_set1_ps(normal.factor), offset = _mm512_set1_ps(normal.offset);
  __m512 v[4];
  for (int64_t i = 0; i < 4; ++i, at += 16) {
    const __mmask16 lanes = kFull ? 0xFFFF : firstLanes(count) >> (16 * i) & 0xFFFF;
    const __m512 x = _mm512_fmadd_ps(floatsOf(_mm_maskz_loadu_epi8(lanes, in + at)), factor, offset);
    v[i] = _mm512_fmadd_ps(
        x, _mm512_maskz_loadu_ps(lanes, norm.multiplier + at),
        _mm512_maskz_loadu_ps(lanes, norm.offset + at));
  }
  const __m512i codes = roundToCodes(v[0], v[1], v[2], v[3], rounding);
  if constexpr (kFull) {
    _mm512_storeu_si512(out + at - 64, codes);
  } else {
    _mm512_mask_storeu_epi8(out + at - 64, firstLanes(count), codes);
  }
}

JIT_PASSES_VNNI void layerNormVnni(const uint8_t* in, int64_t count, const LayerNorm& norm, uint8_t* out) {
  const Normal normal = normalOfRow(in, count, norm.eps);
  const Rounding rounding = roundingTo(norm.range);
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    storeNormal<true>(in, i, 64, normal, norm, rounding, out);
  }
  if (i < count) {
    storeNormal<false>(in, i, count - i, normal, norm, rounding, out);
  }
}

#else
constexpr auto layerNormVnni = layerNormPlain;
#endif

} // namespace

void LayerNorm::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const auto run = form >= Form::Avx512 ? layerNormVnni : layerNormPlain;
  for (int64_t index = begin; index < end; ++index) {
    for (int64_t x = 0; x < out.width; ++x) {
      run(in.rowAt(index) + x * in.pixel, out.channels, *this, out.rowAt(index) + x * out.pixel);
    }
  }
}

} // namespace jit_passes::x86
