// From sums to codes or float32, for the depthwise kernels of AVX-512 VNNI.
#pragma once

#include "depthwise.h"
#include "plain.h"
#include "to_codes.h"

#ifdef JIT_PASSES_HAS_VNNI

namespace jit_passes::x86 {

constexpr int64_t kWide = 64; // channels of a block of depthwise kernels

struct Floats {
  __m512 v[4];
};

// Converts four registers of 16 consecutive channels into the order of a block, or back.
JIT_PASSES_VNNI_INLINE Floats exchanged(const __m512 (&n)[4]) {
  const __m512 a = _mm512_shuffle_f32x4(n[0], n[1], 0x44), b = _mm512_shuffle_f32x4(n[2], n[3], 0x44);
  const __m512 c = _mm512_shuffle_f32x4(n[0], n[1], 0xEE), d = _mm512_shuffle_f32x4(n[2], n[3], 0xEE);
  return {
      {_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD), _mm512_shuffle_f32x4(c, d, 0x88),
       _mm512_shuffle_f32x4(c, d, 0xDD)}};
}

// The scales of a block, in its order. Both halves of a split block have equal scales.
JIT_PASSES_VNNI_INLINE Floats mixed(const float* from, int64_t count, bool split) {
  __m512 n[4];
  for (int i = 0; i < 4; ++i) {
    const int at = split ? i % 2 : i;
    n[i] = _mm512_maskz_loadu_ps(static_cast<__mmask16>(firstLanes(count) >> (16 * at)), from + 16 * at);
  }
  return exchanged(n);
}

// A block of channels along one row of the output, or two rows.
struct Stretch {
  const uint8_t* in;     // of the first pixel's first tap
  int64_t second;        // bytes to the right half of a split block
  int64_t second_begin;  // the right half's first pixel that the left half lacks
  const int64_t* rows;   // bytes to each row of the window, in fours
  int64_t fours, last;   // groups of four rows, and the rows of the last group
  int64_t step, tap;     // bytes from pixel to pixel of the output, and from tap to tap
  int64_t columns, sets; // of the window; rows of the output that have weights
  const int8_t* weight;
  const int32_t* start;
  uint8_t* out[2];            // of each row
  const uint8_t* residual[2]; // null if there is none
  int64_t out_step, residual_step, out_second, residual_second;
  int64_t bytes, residual_bytes; // of a number
  int64_t count;                 // channels
  Floats scale, offset;
  __m512 residual_multiplier;
  Rounding rounding;
  const uint8_t* table;
  // For float32: int32 numbers to subtract from sums; and the form of results.
  Floats zero;
  const SumsToFloats* floats;
};

// Scales and bounds for codes. Scales and bounds are separate from the stretch, so that no store of bytes can change
// them for the compiler.
struct Scaling {
  Floats scale, offset;
  Rounding rounding;
};

// The form of results: SumsToFloats; codes; or direct codes (see Rounding) without a residual and a table. The form
// is decided at compile time, since branches for each pixel took a tenth of the time.
enum class Ends { Floats, Codes, BareCodes };

// Packs the sums of two of a block's four registers, with the residual, to int16: half of a pixel's codes, not
// clipped yet.
template <bool kSplit, Ends kEnds, int kFirst, int kCount>
JIT_PASSES_VNNI_INLINE __m512i
halfOf(const __m512i (&sums)[kCount], const Stretch& s, const Scaling& scaling, int row, int64_t x) {
  constexpr int kFrom = kCount == 4 ? kFirst : 0; // the other registers do not exist
  __m512 v[2];
  __m512 offset[2] = {scaling.offset.v[kFirst], scaling.offset.v[kFirst + 1]};
  if (kEnds == Ends::Codes && s.residual[row]) {
    const auto lanes = static_cast<__mmask64>(firstLanes(s.count));
    const uint8_t* from = s.residual[row] + x * s.residual_step;
    __m512i residual;
    if constexpr (kSplit) {
      const auto half = static_cast<__mmask32>(lanes);
      residual = _mm512_inserti64x4(
          _mm512_castsi256_si512(_mm256_maskz_loadu_epi8(half, from)),
          _mm256_maskz_loadu_epi8(half, from + s.residual_second), 1);
    } else {
      residual = _mm512_maskz_loadu_epi8(lanes, from);
    }
    for (int i = 0; i < 2; ++i) {
      const __m512 other = _mm512_cvtepi32_ps(spread(residual, kFirst + i));
      offset[i] = _mm512_fmadd_ps(other, s.residual_multiplier, offset[i]);
    }
  }
  for (int i = 0; i < 2; ++i) {
    v[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[kFrom + i]), scaling.scale.v[kFirst + i], offset[i]);
  }
  return packHalf(v[0], v[1], kEnds == Ends::BareCodes || scaling.rounding.direct, scaling.rounding);
}

template <bool kSplit, Ends kEnds>
JIT_PASSES_VNNI_INLINE void storeCodes(__m512i codes, const Stretch& s, int row, int64_t x) {
  if (kEnds == Ends::Codes && s.table) {
    codes = lookUp(codes, loadTable(s.table));
  }
  const auto lanes = static_cast<__mmask64>(firstLanes(s.count));
  uint8_t* out = s.out[row] + x * s.out_step;
  if constexpr (kSplit) {
    const auto half = static_cast<__mmask32>(lanes);
    _mm256_mask_storeu_epi8(out, half, _mm512_castsi512_si256(codes));
    if (x >= s.second_begin) {
      _mm256_mask_storeu_epi8(out + s.out_second, half, _mm512_extracti64x4_epi64(codes, 1));
    }
  } else if (s.count == kWide) {
    _mm512_storeu_si512(out, codes);
  } else {
    _mm512_mask_storeu_epi8(out, lanes, codes);
  }
}

// From sums to 64 numbers, before the function. A pixel has all of them, or two pixels have half of them each.
JIT_PASSES_VNNI_INLINE void takeFloats(const __m512i (&sums)[4], const Stretch& s, float* to) {
  __m512 v[4];
  for (int i = 0; i < 4; ++i) {
    const __m512i sum = _mm512_sub_epi32(sums[i], _mm512_castps_si512(s.zero.v[i]));
    v[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), s.scale.v[i], s.offset.v[i]);
  }
  const Floats y = exchanged(v);
  for (int i = 0; i < 4; ++i) {
    _mm512_store_ps(to + 16 * i, y.v[i]);
  }
}

// Stores numbers behind the function, as float32 or codes, with the residual.
template <bool kSplit>
JIT_PASSES_VNNI_INLINE void storeFloats(const float* from, const Stretch& s, int row, int64_t x) {
  __m512 y[4];
  const uint8_t* residual = s.residual[row] + x * s.residual_step;
  uint8_t* out = s.out[row] + x * s.out_step;
  for (int i = 0; i < 4; ++i) {
    const int part = kSplit ? i % 2 : i;
    const bool second = kSplit && i >= 2;
    const auto lanes = static_cast<__mmask16>(firstLanes(s.count) >> (16 * part));
    y[i] = _mm512_load_ps(from + 16 * i);
    if (s.residual[row]) {
      const uint8_t* at = residual + (second ? s.residual_second : 0);
      y[i] = _mm512_add_ps(y[i], _mm512_maskz_loadu_ps(lanes, at + sizeof(__m512) * part));
    }
    if (!s.floats->codes && (!second || x >= s.second_begin)) {
      _mm512_mask_storeu_ps(out + (second ? s.out_second : 0) + sizeof(__m512) * part, lanes, y[i]);
    }
  }
  if (const ToCodes* codes = s.floats->codes) {
    storeCodes<kSplit, Ends::Floats>(codesOf(y, *codes, s.rounding), s, row, x);
  }
}

// Sets the fields that all blocks of a result share. setScales sets the fields of each block.
JIT_PASSES_VNNI inline void setHow(const Requantize& how, int64_t channels, Stretch& s) {
  s.bytes = s.residual_bytes = 1;
  s.residual_step = how.residual ? how.residual->pixel : 0;
  s.residual_multiplier = _mm512_set1_ps(how.residual_multiplier);
  s.rounding = roundingTo(how.range, isDirect(how, channels));
  s.table = how.table;
}

JIT_PASSES_VNNI inline void setScales(
    const Requantize& how, int64_t first, int64_t /*number*/, bool split, Stretch& s) {
  s.scale = mixed(how.multiplier + first, s.count, split);
  s.offset = mixed(how.offset + first, s.count, split);
}

JIT_PASSES_VNNI inline void setHow(const SumsToFloats& how, int64_t /*channels*/, Stretch& s) {
  s.bytes = how.bytes(), s.residual_bytes = sizeof(float);
  s.residual_step = how.residual ? how.residual->pixel : 0;
  s.floats = &how;
  if (how.codes) {
    s.rounding = roundingTo(how.codes->range);
  }
}

// `number` is the number of a pixel. All pixels of a sample have one grid.
JIT_PASSES_VNNI inline void setScales(
    const SumsToFloats& how, int64_t first, int64_t number, bool split, Stretch& s) {
  const auto [scale, zero_point] = how.grids[how.per_row ? number : 0];
  s.scale = mixed(how.scales + first, s.count, split);
  s.offset = mixed(how.bias + first, s.count, split);
  s.zero = mixed(reinterpret_cast<const float*>(how.sums + first), s.count, split);
  for (int i = 0; i < 4; ++i) {
    s.scale.v[i] = _mm512_mul_ps(_mm512_set1_ps(scale), s.scale.v[i]);
    const __m512i zero = _mm512_mullo_epi32(_mm512_set1_epi32(zero_point), _mm512_castps_si512(s.zero.v[i]));
    s.zero.v[i] = _mm512_castsi512_ps(zero);
  }
}

} // namespace jit_passes::x86

#endif
