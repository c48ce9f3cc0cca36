// Convolution as an implicit matrix product, for AVX-512 VNNI.
//
// A pixel's input is a list of runs of neighbouring bytes: with channels innermost, k x k taps are k runs. A tile
// (convolution_tile.h) is 14 pixels by 32 output channels. The 14 pixels are two halves of up to 7 neighbours in a
// row, which need not be neighbours of each other: so widths that are no multiple of 14 lose little. The last part
// of a row overlaps the one before and is stored once.
//
// Share of the peak, one thread, in the caches: 95 to 98 % for 3 x 3 with 64 channels or more, 90 to 95 % for 1 x 1
// with 256 and more, 55 to 75 % with 32 to 64, where rounding and storing takes 66 cycles of a tile's 178 to 290.
#include <algorithm>
#include <cstring>

#include "convolution_tile.h"
#include "convolution_tiles.h"

#ifdef JIT_PASSES_HAS_VNNI

namespace jit_passes::x86 {
namespace {

// The treatment of the codes of all tiles.
struct Finish {
  Rounding rounding;
  const uint8_t* table;
};

JIT_PASSES_VNNI Finish finishOf(const Requantize& requantize) {
  return {roundingTo(requantize.range), requantize.table};
}

// Codes of one tile; `count` of the 32 channels exist. The loop's operands are copied first: bytes that are stored may
// be anything's, so it would be read again for each pixel.
template <bool kFull>
JIT_PASSES_VNNI void storeTile(
    const TileResult& result, int64_t pixels, int64_t first, int64_t count, const Finish& finish,
    const TargetOf<TwoHalves>& target, int64_t step) {
  const auto lanes = static_cast<__mmask32>(firstLanes(count));
  const Rounding rounding = finish.rounding;
  const uint8_t* const table = finish.table;
  const int64_t skip0 = target.skip[0], skip1 = target.skip[1];
  uint8_t *out0 = target.out[0] + first, *out1 = target.out[1] + first;
  const auto put = [&](uint8_t* out, __m256i codes)
                       __attribute__((always_inline, target("avx512vl,avx512bw"))) {
                         if constexpr (kFull) {
                           _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), codes);
                         } else {
                           _mm256_mask_storeu_epi8(out, lanes, codes);
                         }
                       };
  for (int64_t p = 0; p < pixels; ++p, out0 += step, out1 += step) {
    __m512i codes = _mm512_load_si512(result.codes + 64 * p);
    codes = clampCodes(_mm512_permutexvar_epi32(rounding.order, codes), rounding);
    if (table) {
      codes = lookUp(codes, loadTable(table));
    }
    if (p >= skip0) {
      put(out0, _mm512_castsi512_si256(codes));
    }
    if (p >= skip1) {
      put(out1, _mm512_extracti64x4_epi64(codes, 1));
    }
  }
}

using StoreTile = void (*)(
    const TileResult&, int64_t, int64_t, int64_t, const Finish&, const TargetOf<TwoHalves>&, int64_t);
constexpr StoreTile kStoreTile[2] = {storeTile<false>, storeTile<true>};

// Scales of a block, in a copy where the block has fewer channels.
void takeScales(const Requantize& requantize, int64_t first, int64_t count, TileResult& result) {
  result.multiplier = requantize.multiplier + first, result.offset = requantize.offset + first;
  if (count < 2 * kLanes) {
    std::copy_n(result.multiplier, count, result.copies[0]);
    std::copy_n(result.offset, count, result.copies[1]);
    result.multiplier = result.copies[0], result.offset = result.copies[1];
  }
}

// See runTiles.
struct TilesToCodes {
  using Shape = TwoHalves;

  JIT_PASSES_VNNI TilesToCodes(
      const Requantize& requantize, bool direct, int64_t residual_step, int64_t out_step)
      : how(requantize),
        gives(
            how.residual ? direct ? Gives::DirectAddedCodes : Gives::AddedCodes
            : direct     ? Gives::DirectCodes
                         : Gives::Codes),
        finish(finishOf(how)),
        step(out_step) {
    result.most = static_cast<float>(how.range.high);
    std::fill_n(result.zero_point, 2 * kLanes, static_cast<int16_t>(how.range.zero_point));
    result.residual = {{}, residual_step, how.residual_multiplier};
  }

  void place() {}
  void enter(int64_t first, int64_t count) { takeScales(how, first, count, result); }

  void run(const TileWork<Shape>& work, const TargetOf<Shape>& target) {
    result.residual.half[0] = target.residual[0] + work.first;
    result.residual.half[1] = target.residual[1] + work.first;
    multiplyTileFor(gives, work.columns, work.pixels)(
        work.tile, work.channel, work.weight, work.ahead, work.start, &result);
    kStoreTile[work.count == 2 * kLanes](result, work.pixels, work.first, work.count, finish, target, step);
  }

  const Requantize& how;
  Gives gives;
  Finish finish;
  int64_t step;
  TileResult result{};
};

} // namespace

int64_t Convolution::itemsVnni(const Image& in, const Image& out, const Image* residual) const {
  return TileParts<TwoHalves>(window_, in, out, residual).tiles * static_cast<int64_t>(blocks_.size());
}

JIT_PASSES_VNNI void Convolution::runVnni(
    const Image& in, const Image& out, const Requantize& how, int64_t begin, int64_t end) const {
  TilesToCodes finish(
      how, isDirect(how, out_channels_), how.residual ? how.residual->pixel : out.pixel, out.pixel);
  runTiles(in, out, how.residual, finish, begin, end);
}

} // namespace jit_passes::x86

#else

namespace jit_passes::x86 {

int64_t Convolution::itemsVnni(const Image&, const Image&, const Image*) const { return 0; }
void Convolution::runVnni(const Image&, const Image&, const Requantize&, int64_t, int64_t) const {}

} // namespace jit_passes::x86

#endif
