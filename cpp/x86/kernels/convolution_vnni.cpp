// Convolution as an implicit matrix product, for AVX-512 VNNI.
//
// A pixel's input is a list of runs of neighbouring bytes: with channels innermost, k x k taps are k runs. A tile
// (convolution_tile.h) is 14 pixels by 32 output channels. The 14 pixels are two halves of up to 7 neighbours in a
// row, which need not be neighbours of each other: so widths that are no multiple of 14 lose little. The last part
// of a row overlaps the one before and is stored once.
//
// Weights: [block of 32 channels][run][four bytes][channel][4]; runs are filled up to fours with zeros, so what
// lies behind a run does not count. The last block of a group has 16 channels if that is enough.
//
// Share of the peak, one thread, in the caches: 95 to 98 % for 3 x 3 with 64 channels or more, 90 to 95 % for 1 x 1
// with 256 and more, 55 to 75 % with 32 to 64, where rounding and storing takes 66 cycles of a tile's 178 to 290.
#include <algorithm>
#include <cstring>

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
  return {roundingTo(requantize.low, requantize.high), requantize.table};
}

// Codes of one tile; `count` of the 32 channels exist. The loop's operands are copied first: bytes that are stored may
// be anything's, so it would be read again for each pixel.
template <bool kFull>
JIT_PASSES_VNNI void storeTile(
    const TileResult& result, int64_t pixels, int64_t first, int64_t count, const Finish& finish,
    const Target& target, int64_t step) {
  const auto lanes = static_cast<__mmask32>(firstLanes(count));
  const Rounding rounding = finish.rounding;
  const uint8_t* const table = finish.table;
  const int64_t skip0 = target.skip[0], skip1 = target.skip[1];
  uint8_t *out0 = target.half[0] + first, *out1 = target.half[1] + first;
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

using StoreTile =
    void (*)(const TileResult&, int64_t, int64_t, int64_t, const Finish&, const Target&, int64_t);
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
  JIT_PASSES_VNNI TilesToCodes(
      const Requantize& requantize, bool bounded, int64_t residual_step, int64_t out_step)
      : how(requantize),
        gives(
            how.residual ? bounded ? Gives::BoundedAddedCodes : Gives::AddedCodes
            : bounded    ? Gives::BoundedCodes
                         : Gives::Codes),
        finish(finishOf(how)),
        step(out_step) {
    result.most = static_cast<float>(how.high);
    result.residual = {{}, residual_step, how.residual_multiplier};
  }

  void enter(int64_t first, int64_t count) { takeScales(how, first, count, result); }

  void run(const TileWork& work, const Target& target) {
    result.residual.half[0] = target.residual[0] + work.first;
    result.residual.half[1] = target.residual[1] + work.first;
    work.multiply(gives, &result);
    kStoreTile[work.count == 2 * kLanes](result, work.pixels, work.first, work.count, finish, target, step);
  }

  const Requantize& how;
  Gives gives;
  Finish finish;
  int64_t step;
  TileResult result{};
};

// As many neighbouring groups as fill a register are one, with weights of 0 between them: that takes no more
// products, since a register is multiplied as a whole.
int64_t mergedGroups(int64_t groups, int64_t out_group) {
  int64_t merged = 1;
  for (int64_t i = 2; i * out_group <= kLanes; ++i) {
    merged = groups % i == 0 ? i : merged;
  }
  return merged;
}

} // namespace

void Convolution::packVnni(const int8_t* weight) {
  const Window& w = window_;
  const int64_t merged = mergedGroups(w.groups, out_channels_ / w.groups), groups = w.groups / merged;
  const int64_t in_group = in_channels_ / groups, out_group = out_channels_ / groups;
  const int64_t in_own = in_group / merged;
  const bool joined = dense_ && groups == 1 && w.dilation_w == 1;
  runs_ = joined ? w.kernel_d * w.kernel_h : w.taps();
  const int64_t length = joined ? w.kernel_w * in_group : in_group;
  quads_ = (length + 3) / 4;
  if (runs_ > kMostRuns) {
    form_ = Form::Plain;
    packPlain(weight);
    return;
  }
  AlignedVector<int32_t> start;
  for (int64_t first = 0; first < out_channels_;) {
    const int64_t group = first / out_group;
    const int64_t count = std::min(2 * kLanes, (group + 1) * out_group - first);
    const int64_t columns = count > kLanes ? 2 : 1;
    blocks_.push_back({first, count, columns, group * in_group, static_cast<int64_t>(packed_.size())});
    packed_.resize(packed_.size() + runs_ * quads_ * columns * kLanes * 4);
    int8_t* to = packed_.data() + blocks_.back().weight;
    for (int64_t c = 0; c < count; ++c) {
      const int64_t own = (first + c) % out_group / (out_group / merged);
      for (int64_t tap = 0; tap < w.taps(); ++tap) {
        const int64_t run = joined ? tap / w.kernel_w : tap;
        const int64_t begin = own * in_own + (joined ? tap % w.kernel_w * in_group : 0);
        const int8_t* from = weight + ((first + c) * w.taps() + tap) * in_own;
        for (int64_t i = begin; i < begin + in_own; ++i) {
          to[((run * quads_ + i / 4) * columns * kLanes + c) * 4 + i % 4] = *from++;
        }
      }
    }
    start.resize(blocks_.size() * 2 * kLanes);
    std::copy_n(start_.begin() + first, count, start.end() - 2 * kLanes);
    first += count;
  }
  start_ = std::move(start);
}

int64_t Convolution::itemsVnni(const Image& in, const Image& out, const Image* residual) const {
  return TileParts(window_, in, out, residual).tiles * static_cast<int64_t>(blocks_.size());
}

JIT_PASSES_VNNI void Convolution::runVnni(
    const Image& in, const Image& out, const Requantize& how, int64_t begin, int64_t end) const {
  TilesToCodes finish(
      how, isBounded(how, out_channels_), how.residual ? how.residual->pixel : out.pixel, out.pixel);
  runTiles(in, out, how.residual, finish, begin, end);
}

} // namespace jit_passes::x86

#else

namespace jit_passes::x86 {

void Convolution::packVnni(const int8_t* weight) { packPlain(weight); }
int64_t Convolution::itemsVnni(const Image&, const Image&, const Image*) const { return 0; }
void Convolution::runVnni(const Image&, const Image&, const Requantize&, int64_t, int64_t) const {}

} // namespace jit_passes::x86

#endif
