// Convolution for AMX. Packed weights are those of AVX-512 VNNI, so tiles with few pixels take its form.
#include "amx.h"
#include "convolution_tiles.h"
#include "tiles_to_floats.h"

namespace jit_passes::x86 {

#ifdef JIT_PASSES_HAS_AMX

namespace {

bool worthAmx(const TileParts<TwoSixteens>& work) { return work.pixels >= kFewestForAmx; }

// See runTiles.
class AmxToCodes {
 public:
  using Shape = TwoSixteens;

  JIT_PASSES_VNNI
  AmxToCodes(const AmxSums& sums, const Requantize& how, int64_t channels, const Image& out)
      : multiply_(sums),
        how_(how),
        rounding_(roundingTo(how.range, isDirect(how, channels))),
        out_step_(out.pixel),
        residual_step_(how.residual ? how.residual->pixel : 0) {}

  void place() {}

  JIT_PASSES_VNNI void enter(int64_t first, int64_t count) {
    lanes_ = static_cast<__mmask32>(firstLanes(count));
    for (int64_t i = 0; i < 2; ++i) {
      multiplier_[i] = _mm512_maskz_loadu_ps(lanesOf(i), how_.multiplier + first + i * kLanes);
      offset_[i] = _mm512_maskz_loadu_ps(lanesOf(i), how_.offset + first + i * kLanes);
    }
  }

  JIT_PASSES_VNNI void run(const TileWork<Shape>& work, const TargetOf<Shape>& target) {
    multiply_(
        work.tile, target.count, work.columns, work.pixels, work.channel, work.weight, work.ahead, work.start,
        sums_);
    for (int64_t part = 0; part < target.count; ++part) {
      const int32_t* sums = sums_ + part * kBlockChannels;
      const uint8_t* residual = how_.residual ? target.residual[part] + work.first : nullptr;
      uint8_t* out = target.out[part] + work.first;
      for (int64_t p = target.skip[part]; p < work.pixels; p += 2) {
        storeTwo(sums, residual, out, p, std::min(p + 1, work.pixels - 1));
      }
    }
  }

 private:
  __mmask16 lanesOf(int64_t i) const { return static_cast<__mmask16>(lanes_ >> (i * kLanes)); }

  // Pixels p and q of a part.
  JIT_PASSES_VNNI_INLINE void storeTwo(
      const int32_t* sums, const uint8_t* residual, uint8_t* out, int64_t p, int64_t q) const {
    const auto number = [&](int64_t pixel, int64_t i) __attribute__((always_inline)) JIT_PASSES_VNNI {
      __m512 with = offset_[i];
      if (residual) {
        const uint8_t* codes = residual + pixel * residual_step_ + i * kLanes;
        const __m512 other = floatsOf(_mm_maskz_loadu_epi8(lanesOf(i), codes));
        with = _mm512_fmadd_ps(other, _mm512_set1_ps(how_.residual_multiplier), with);
      }
      const __m512i sum = _mm512_load_si512(sums + pixel * 2 * kBlockChannels + i * kLanes);
      return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), multiplier_[i], with);
    };
    __m512i codes = roundToCodes(number(p, 0), number(p, 1), number(q, 0), number(q, 1), rounding_);
    if (how_.table) {
      codes = lookUp(codes, loadTable(how_.table));
    }
    _mm256_mask_storeu_epi8(out + p * out_step_, lanes_, _mm512_castsi512_si256(codes));
    _mm256_mask_storeu_epi8(out + q * out_step_, lanes_, _mm512_extracti64x4_epi64(codes, 1));
  }

  const AmxSums& multiply_;
  const Requantize& how_;
  Rounding rounding_;
  int64_t out_step_, residual_step_;
  __mmask32 lanes_ = 0;
  __m512 multiplier_[2], offset_[2];
  alignas(64) int32_t sums_[Shape::kPixels * 2 * kBlockChannels] = {};
};

JIT_PASSES_VNNI AmxToCodes
finishOf(const AmxSums& sums, const Requantize& how, int64_t channels, const Image& out) {
  return {sums, how, channels, out};
}

JIT_PASSES_VNNI TilesToFloats<AmxSums> finishOf(
    const AmxSums& sums, const SumsToFloats& how, int64_t /*channels*/, const Image& out) {
  return {sums, how, out};
}

} // namespace

int64_t Convolution::itemsAmx(const Image& in, const Image& out, const Image* residual) const {
  const TileParts<TwoSixteens> work(window_, in, out, residual);
  return worthAmx(work) ? work.tiles * static_cast<int64_t>(blocks_.size()) : itemsVnni(in, out, residual);
}

template <typename How>
JIT_PASSES_VNNI void Convolution::runAmx(
    const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const {
  const TileParts<TwoSixteens> work(window_, in, out, how.residual);
  if (!worthAmx(work)) {
    return runVnni(in, out, how, begin, end);
  }
  const AmxSums sums(work.pixels, quads_);
  auto finish = finishOf(sums, how, out_channels_, out);
  runTiles(in, out, how.residual, finish, begin, end);
}

#else

int64_t Convolution::itemsAmx(const Image&, const Image&, const Image*) const { return 0; }
template <typename How>
void Convolution::runAmx(const Image&, const Image&, const How&, int64_t, int64_t) const {}

#endif

template void Convolution::runAmx(const Image&, const Image&, const Requantize&, int64_t, int64_t) const;
template void Convolution::runAmx(const Image&, const Image&, const SumsToFloats&, int64_t, int64_t) const;

} // namespace jit_passes::x86
