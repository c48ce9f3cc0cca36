// Convolution as an implicit matrix product, for AVX-512 VNNI.
//
// The input of a pixel is a list of runs of neighbouring bytes: with channels innermost, k x k taps are k runs. A
// tile (convolution_tile.h) is 14 pixels by 32 output channels. The 14 pixels are two halves of up to 7 neighbours
// in a row. The halves may come from different places, so a width that is no multiple of 14 loses little. The last
// part of a row overlaps the part before, and the overlap is stored once.
//
// Share of the peak, one thread of Zen 4, in the caches: 98 to 100 % for 3 x 3 with 64 channels or more, 93 to 98 % for
// 1 x 1 with 128 and more, 70 to 88 % with 24 to 96, where rounding and storing take 63 to 76 cycles of a tile.
#include <algorithm>
#include <cstring>

#include "convolution_tile.h"
#include "convolution_tiles.h"

#ifdef JIT_PASSES_HAS_VNNI

namespace jit_passes::x86 {
namespace {

// Bytes from one pixel to the next in the buffer of codes. Pixels of both halves are neighbours there.
constexpr int64_t kBuffered = 2 * kBlockChannels;

// Stores the codes of one tile from a buffer. `work.count` of the 32 channels exist, or all of them if `kFull`.
template <bool kFull>
JIT_PASSES_VNNI void storeTile(
    const uint8_t* codes, const TileWork<TwoHalves>& work, const TargetOf<TwoHalves>& target,
    const uint8_t* table, int64_t step) {
  const auto lanes = static_cast<__mmask32>(firstLanes(work.count));
  const int64_t skip0 = target.skip[0], skip1 = target.skip[1];
  uint8_t *out0 = target.out[0] + work.first, *out1 = target.out[1] + work.first;
  const Table entries = table ? loadTable(table) : Table{};
  // A read as wide as the write before does not wait for the memory.
  const auto half = [&](const uint8_t* at) __attribute__((always_inline, target("avx512vl"))) {
    return work.columns == 1 ? _mm256_castsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(at)))
                             : _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
  };
  const auto put = [&](uint8_t* out, __m256i half)
                       __attribute__((always_inline, target("avx512vl,avx512bw"))) {
                         if constexpr (kFull) {
                           _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), half);
                         } else {
                           _mm256_mask_storeu_epi8(out, lanes, half);
                         }
                       };
  for (int64_t p = 0; p < work.pixels; ++p, codes += kBuffered, out0 += step, out1 += step) {
    __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(half(codes)), half(codes + kBlockChannels), 1);
    if (table) {
      both = lookUp(both, entries);
    }
    if (p >= skip0) {
      put(out0, _mm512_castsi512_si256(both));
    }
    if (p >= skip1) {
      put(out1, _mm512_extracti64x4_epi64(both, 1));
    }
  }
}

using StoreTile =
    void (*)(const uint8_t*, const TileWork<TwoHalves>&, const TargetOf<TwoHalves>&, const uint8_t*, int64_t);
constexpr StoreTile kStoreTile[2] = {storeTile<false>, storeTile<true>};

// Takes the scales of a block, as a copy if the block has fewer channels.
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
        step(out_step) {
    for (int32_t i = 0; i < kLanes; ++i) {
      result.order[i] = i % 4 * 4 + i / 4;
    }
    std::fill_n(result.low, 4 * kLanes, static_cast<uint8_t>(how.range.low));
    std::fill_n(result.high, 4 * kLanes, static_cast<uint8_t>(how.range.high));
    result.most = static_cast<float>(how.range.high);
    std::fill_n(result.zero_point, 2 * kLanes, static_cast<int16_t>(how.range.zero_point));
    result.residual = {{}, residual_step, how.residual_multiplier};
  }

  void place() {}
  void enter(int64_t first, int64_t count) { takeScales(how, first, count, result); }

  void run(const TileWork<Shape>& work, const TargetOf<Shape>& target) {
    result.residual.half[0] = target.residual[0] + work.first;
    result.residual.half[1] = target.residual[1] + work.first;
    const bool has_both = target.count == 2, all_new = target.skip[0] == 0 && !(has_both && target.skip[1]);
    const bool in_place = !how.table && work.count == work.columns * kLanes && all_new;
    result.codes = in_place ? TileCodes{{target.out[0] + work.first, target.out[1] + work.first}, step}
                            : TileCodes{{buffer, buffer + kBlockChannels}, kBuffered};
    multiplyTileFor(gives, target.count, work.columns, work.pixels)(
        work.tile, work.channel, work.weight, work.ahead, work.start, &result);
    if (!in_place) {
      kStoreTile[work.count == kBlockChannels](buffer, work, target, how.table, step);
    }
  }

  const Requantize& how;
  Gives gives;
  int64_t step;
  TileResult result{};
  alignas(64) uint8_t buffer[kBuffered * kHalf]{};
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
