// From sums of a tile to float32, and to codes behind a function, for AVX-512.
#pragma once

#include "convolution_tile.h"
#include "convolution_tiles.h"
#include "dynamic.h"
#include "to_codes.h"

#ifdef JIT_PASSES_HAS_VNNI

namespace jit_passes::x86 {

// The factors of 32 channels for all pixels. With one grid, they include its scale.
struct BlockScales {
  __m512i sums[2];
  __m512 scales[2], bias[2];
  __mmask16 lanes[2];
};

JIT_PASSES_VNNI_INLINE BlockScales multiplied(const BlockScales& by, const RowGrid& grid) {
  BlockScales result = by;
  for (int i = 0; i < 2; ++i) {
    result.sums[i] = _mm512_mullo_epi32(_mm512_set1_epi32(grid.zero_point), by.sums[i]);
    result.scales[i] = _mm512_mul_ps(_mm512_set1_ps(grid.scale), by.scales[i]);
  }
  return result;
}

JIT_PASSES_VNNI_INLINE BlockScales scalesOf(const SumsToFloats& how, int64_t first, int64_t count) {
  BlockScales block;
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t at = first + i * kLanes;
    const __mmask16 lanes = block.lanes[i] = firstLanes(count) >> (i * kLanes) & 0xFFFF;
    block.sums[i] = _mm512_maskz_loadu_epi32(lanes, how.sums + at);
    block.scales[i] = _mm512_maskz_loadu_ps(lanes, how.scales + at);
    block.bias[i] = _mm512_maskz_loadu_ps(lanes, how.bias + at);
  }
  return how.per_row ? block : multiplied(block, how.grids[0]);
}

JIT_PASSES_VNNI_INLINE __m512 floatsOfSums(const int32_t* sums, const BlockScales& block, int i) {
  const __m512i sum = _mm512_sub_epi32(_mm512_load_si512(sums + i * kLanes), block.sums[i]);
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), block.scales[i], block.bias[i]);
}

// See runTiles. With a function, sums of a part pass through `floats_`.
template <typename Sums>
class TilesToFloats {
 public:
  using Shape = typename Sums::Shape;

  TilesToFloats(const Sums& sums, const SumsToFloats& how, const Image& out)
      : multiply_(sums), how_(how), out_(out) {}

  void place() {}
  JIT_PASSES_VNNI void enter(int64_t first, int64_t count) { block_ = scalesOf(how_, first, count); }

  JIT_PASSES_VNNI void run(const TileWork<Shape>& work, const TargetOf<Shape>& target) {
    multiply_(
        work.tile, target.count, work.columns, work.pixels, work.channel, work.weight, work.ahead, work.start,
        sums_);
    for (int64_t i = 0; i < target.count; ++i) {
      finishPart(work, target, i);
    }
  }

 private:
  // The place of 32 channels of a pixel in the result, and their addend.
  struct Channels {
    uint8_t* out;
    const float* residual;
  };

  Channels channelsOf(
      const TileWork<Shape>& work, const TargetOf<Shape>& target, int64_t part, int64_t p) const {
    const uint8_t* residual = how_.residual ? target.residual[part] + p * how_.residual->pixel : nullptr;
    return {
        target.out[part] + p * out_.pixel + work.first * how_.bytes(),
        residual ? reinterpret_cast<const float*>(residual) + work.first : nullptr};
  }

  JIT_PASSES_VNNI_INLINE __m512 added(__m512 y, int i, const Channels& to) const {
    return to.residual ? _mm512_add_ps(y, _mm512_maskz_loadu_ps(block_.lanes[i], to.residual + i * kLanes))
                       : y;
  }

  JIT_PASSES_VNNI_INLINE void putFloats(__m512 y, int i, const Channels& to) const {
    _mm512_mask_storeu_ps(to.out + i * sizeof(__m512), block_.lanes[i], added(y, i, to));
  }

  // Stores the codes of a pixel, and of the next pixel if there is one.
  JIT_PASSES_VNNI_INLINE void putCodes(
      const float* floats, const Rounding& rounding, int64_t count, const Channels& to,
      const Channels* next) const {
    __m512 y[4];
    for (int i = 0; i < 2; ++i) {
      y[i] = added(_mm512_load_ps(floats + i * kLanes), i, to);
      y[2 + i] = next ? added(_mm512_load_ps(floats + (2 + i) * kLanes), i, *next) : y[i];
    }
    const __m512i codes = codesOf(y, *how_.codes, rounding);
    const auto lanes = static_cast<__mmask32>(firstLanes(count));
    _mm256_mask_storeu_epi8(to.out, lanes, _mm512_castsi512_si256(codes));
    if (next) {
      _mm256_mask_storeu_epi8(next->out, lanes, _mm512_extracti64x4_epi64(codes, 1));
    }
  }

  JIT_PASSES_VNNI void finishPart(const TileWork<Shape>& work, const TargetOf<Shape>& target, int64_t part) {
    const int64_t skip = target.skip[part], pixels = work.pixels;
    const int32_t* sums = sums_ + part * 2 * kLanes;
    const bool direct = how_.function.which == FloatFunction::None && !how_.codes;
    const auto at = [&](int64_t p) { return channelsOf(work, target, part, p); };
    for (int64_t p = skip; p < pixels; ++p) {
      const BlockScales own = how_.per_row ? multiplied(block_, how_.grids[target.number[part] + p]) : block_;
      for (int i = 0; i < 2; ++i) {
        const __m512 x = floatsOfSums(sums + p * 4 * kLanes, own, i);
        if (direct) {
          putFloats(x, i, at(p));
        } else {
          _mm512_store_ps(floats_ + (2 * p + i) * kLanes, x);
        }
      }
    }
    if (direct || skip >= pixels) {
      return;
    }
    float* const begin = floats_ + 2 * skip * kLanes;
    how_.function.run(begin, begin, 2 * (pixels - skip) * kLanes);
    if (how_.codes) {
      const Rounding rounding = roundingTo(how_.codes->range);
      for (int64_t p = skip; p < pixels; p += 2) {
        const Channels next = at(p + 1);
        putCodes(floats_ + 2 * p * kLanes, rounding, work.count, at(p), p + 1 < pixels ? &next : nullptr);
      }
      return;
    }
    for (int64_t p = skip; p < pixels; ++p) {
      for (int i = 0; i < 2; ++i) {
        putFloats(_mm512_load_ps(floats_ + (2 * p + i) * kLanes), i, at(p));
      }
    }
  }

  const Sums& multiply_;
  const SumsToFloats& how_;
  const Image& out_;
  BlockScales block_;
  alignas(64) int32_t sums_[Shape::kPixels * 4 * kLanes] = {};
  alignas(64) float floats_[Shape::kPixels * 2 * kLanes];
};

} // namespace jit_passes::x86

#endif
