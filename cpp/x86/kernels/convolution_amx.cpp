// Convolution for AMX. Weights are packed as for AVX-512 VNNI, so tiles with few pixels can use its form.
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

  JIT_PASSES_VNNI AmxToCodes(const AmxSums& sums, const Requantize& how, int64_t channels, const Image& out)
      : multiply_(sums),
        how_(how),
        rounding_(roundingTo(how.range, isDirect(how, channels))),
        out_step_(out.pixel),
        residual_step_(how.residual ? how.residual->pixel : 0),
        finish_(
            how.residual
                ? rounding_.direct ? &AmxToCodes::finish<true, true> : &AmxToCodes::finish<false, true>
            : rounding_.direct ? &AmxToCodes::finish<true, false>
                               : &AmxToCodes::finish<false, false>) {}

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
    (this->*finish_)(work, target);
  }

 private:
  __mmask16 lanesOf(int64_t i) const { return static_cast<__mmask16>(lanes_ >> (i * kLanes)); }

  // Two pixels at a time. Members are copied, since a compiler must assume that stores change them.
  template <bool kDirect, bool kAdds>
  JIT_PASSES_VNNI void finish(const TileWork<Shape>& work, const TargetOf<Shape>& target) const {
    Rounding rounding = rounding_;
    rounding.direct = kDirect;
    const __m512 multiplier[2] = {multiplier_[0], multiplier_[1]}, offset[2] = {offset_[0], offset_[1]};
    const __m512 factor = _mm512_set1_ps(how_.residual_multiplier);
    const __mmask32 lanes = lanes_;
    const __mmask16 lanes_of[2] = {lanesOf(0), lanesOf(1)};
    const int64_t pixels = work.pixels, out_step = out_step_, residual_step = residual_step_;
    const uint8_t* table = how_.table;
    for (int64_t part = 0; part < target.count; ++part) {
      const int32_t* sums = sums_ + part * kBlockChannels;
      const uint8_t* residual = kAdds ? target.residual[part] + work.first : nullptr;
      uint8_t* out = target.out[part] + work.first;
      const auto number = [&](int64_t p, int64_t i) __attribute__((always_inline)) JIT_PASSES_VNNI {
        __m512 with = offset[i];
        if constexpr (kAdds) {
          const uint8_t* codes = residual + p * residual_step + i * kLanes;
          with = _mm512_fmadd_ps(floatsOf(_mm_maskz_loadu_epi8(lanes_of[i], codes)), factor, with);
        }
        const __m512i sum = _mm512_load_si512(sums + p * 2 * kBlockChannels + i * kLanes);
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), multiplier[i], with);
      };
      for (int64_t p = target.skip[part]; p < pixels; p += 2) {
        const int64_t q = std::min(p + 1, pixels - 1);
        __m512i codes = roundToCodes(number(p, 0), number(p, 1), number(q, 0), number(q, 1), rounding);
        if (table) {
          codes = lookUp(codes, loadTable(table));
        }
        _mm256_mask_storeu_epi8(out + p * out_step, lanes, _mm512_castsi512_si256(codes));
        _mm256_mask_storeu_epi8(out + q * out_step, lanes, _mm512_extracti64x4_epi64(codes, 1));
      }
    }
  }

  using Finish = void (AmxToCodes::*)(const TileWork<Shape>&, const TargetOf<Shape>&) const;

  const AmxSums& multiply_;
  const Requantize& how_;
  Rounding rounding_;
  int64_t out_step_, residual_step_;
  Finish finish_;
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
