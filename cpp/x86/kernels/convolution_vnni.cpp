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

#include "convolution_tile.h"

#ifdef JIT_PASSES_HAS_VNNI

namespace jit_passes::x86 {
namespace {

// Where the codes of a tile go: pixels from `skip` on of each half.
struct Target {
  uint8_t* half[2];
  int64_t skip[2];
  int64_t step;
};

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
    const Target& target) {
  const auto lanes = static_cast<__mmask32>(firstLanes(count));
  const Rounding rounding = finish.rounding;
  const uint8_t* const table = finish.table;
  const int64_t step = target.step, skip0 = target.skip[0], skip1 = target.skip[1];
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

using StoreTile = void (*)(const TileResult&, int64_t, int64_t, int64_t, const Finish&, const Target&);
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

// Whether each pixel is made of the one in its place. Without padding an image may still have others behind its own.
bool isPointwise(const Window& w, const Image& in, const Image& out) {
  return w.taps() == 1 && w.stride_d == 1 && w.stride_h == 1 && w.stride_w == 1 && w.pad_front == 0 &&
         w.pad_top == 0 && w.pad_left == 0 && in.depth == out.depth && in.height == out.height &&
         in.width == out.width;
}

// One row after the other, where the pixels of all of them are evenly spaced in all images.
void joinRows(std::initializer_list<Image*> images) {
  const auto join = [&](int64_t Image::* count, int64_t Image::* stride) {
    const auto even = [&](const Image* image) {
      return image->*count == 1 || image->*stride == image->width * image->pixel;
    };
    const bool joined = std::all_of(images.begin(), images.end(), even);
    for (Image* image : images) {
      image->width *= joined ? image->*count : 1;
      image->*count = joined ? 1 : image->*count;
    }
    return joined;
  };
  join(&Image::height, &Image::row) && join(&Image::depth, &Image::plane) &&
      join(&Image::images, &Image::image);
}

// Each row of the output in `parts` of `half` pixels, of which two make a tile.
struct Parts {
  Parts(const Window& window, const Image& in_image, const Image& out_image, const Image* other)
      : in(in_image), out(out_image), residual(other ? *other : out_image) {
    if (isPointwise(window, in, out)) {
      joinRows({&in, &out, &residual});
    }
    parts = (out.width + kHalf - 1) / kHalf;
    half = parts ? (out.width + parts - 1) / parts : 0;
    tiles = (out.rows() * parts + 1) / 2;
  }

  Image in, out, residual; // which is the output where there is none
  int64_t parts, half, tiles;
};

// A part of a row, and where its pixels begin. Going on to the next one needs no divisions, which would take as
// long as the products of a tile with few input channels.
struct Place {
  Place(const Parts& work, const Window& window, int64_t part)
      : row(part / work.parts), part(part % work.parts) {
    enter(work, window);
  }

  void next(const Parts& work, const Window& window) {
    if (++part == work.parts) {
      part = 0;
      ++row;
      enter(work, window);
    }
  }

  // The first pixel; the last part of a row overlaps the one before.
  int64_t column(const Parts& work) const { return std::min(part * work.half, work.out.width - work.half); }

  int64_t row, part;
  const uint8_t *in = nullptr, *residual = nullptr;
  uint8_t* out = nullptr;

 private:
  void enter(const Parts& work, const Window& w) {
    if (row == work.out.rows()) {
      return;
    }
    const int64_t y = row % work.out.height, z = row / work.out.height % work.out.depth;
    const int64_t n = row / work.out.height / work.out.depth;
    in = work.in.at(n, z * w.stride_d - w.pad_front, y * w.stride_h - w.pad_top, -w.pad_left);
    out = work.out.at(n, z, y, 0);
    residual = work.residual.at(n, z, y, 0);
  }
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
  return Parts(window_, in, out, residual).tiles * static_cast<int64_t>(blocks_.size());
}

// The larger of weights and input is gone through once, and divided between threads.
void Convolution::runVnni(
    const Image& in_image, const Image& out_image, const Requantize& requantize, int64_t begin,
    int64_t end) const {
  const Window& w = window_;
  const Parts work(w, in_image, out_image, requantize.residual);
  const Image &in = work.in, &out = work.out;
  const bool by_block = static_cast<int64_t>(packed_.size()) > in.rows() * in.width * in.channels;
  const auto blocks = static_cast<int64_t>(blocks_.size());
  const bool bounded = isBounded(requantize, out_channels_);
  const Gives gives = requantize.residual ? bounded ? Gives::BoundedAddedCodes : Gives::AddedCodes
                      : bounded           ? Gives::BoundedCodes
                                          : Gives::Codes;
  const Finish finish = finishOf(requantize);

  int64_t jumps[kMostRuns], last = 0;
  const int64_t columns = runs_ / (w.kernel_d * w.kernel_h);
  for (int64_t run = 0; run < runs_; ++run) {
    const int64_t x = run % columns, y = run / columns % w.kernel_h, z = run / columns / w.kernel_h;
    const int64_t at = z * w.dilation_d * in.plane + y * w.dilation_h * in.row + x * w.dilation_w * in.pixel;
    jumps[std::max<int64_t>(run - 1, 0)] = at - last;
    last = at + 4 * quads_;
  }
  jumps[runs_ - 1] = 0;

  TileResult result{};
  result.most = static_cast<float>(requantize.high);
  result.residual = {{}, work.residual.pixel, requantize.residual_multiplier};
  Tile tile{{}, w.stride_w * in.pixel, jumps, runs_, quads_};
  Target target{};
  target.step = out.pixel;
  const uint8_t* residual[2]; // the first pixel of each half
  const auto setTile = [&](Place& place) {
    for (int64_t i = 0; i < 2; ++i) {
      // The last tile's second half may not exist: it repeats the first one and is not stored.
      const bool exists = place.row < out.rows();
      if (exists) {
        const int64_t x = place.column(work);
        tile.half[i] = place.in + x * tile.step;
        target.half[i] = place.out + x * out.pixel;
        target.skip[i] = place.part * work.half - x;
        residual[i] = place.residual + x * result.residual.step;
        place.next(work, w);
      } else {
        tile.half[i] = tile.half[0], target.half[i] = target.half[0], target.skip[i] = work.half;
        residual[i] = residual[0];
      }
    }
  };

  // While a block of weights is used, the tiles fetch the next one.
  const int64_t block_bytes = runs_ * quads_ * 2 * kLanes * 4, fetched_by_tile = runs_ * (quads_ / 4) * 128;
  const int64_t inner = by_block ? work.tiles : blocks;
  int64_t position = inner ? begin % inner : 0, outer = inner ? begin / inner : 0;
  Place place(work, w, 2 * (by_block ? position : outer));
  const Block* scaled = nullptr; // whose scales the result has
  for (int64_t item = begin; item < end; ++item) {
    if (by_block || position == 0 || item == begin) {
      setTile(place);
    }
    const Block& block = blocks_[by_block ? outer : position];
    const int8_t* weight = packed_.data() + block.weight;
    const int64_t fetched = by_block ? position * fetched_by_tile : 0;
    const bool fetch = by_block && outer + 1 < blocks && fetched + fetched_by_tile <= block_bytes;
    if (&block != scaled) {
      takeScales(requantize, block.first, block.count, result);
      scaled = &block;
    }
    result.residual.half[0] = residual[0] + block.first;
    result.residual.half[1] = residual[1] + block.first;
    multiplyTileFor(gives, block.columns, work.half)(
        tile, block.in_channel, weight, fetch ? weight + block_bytes + fetched : weight,
        start_.data() + (&block - blocks_.data()) * 2 * kLanes, &result);
    kStoreTile[block.count == 2 * kLanes](result, work.half, block.first, block.count, finish, target);
    if (++position == inner) {
      position = 0;
      ++outer;
      place = by_block ? Place(work, w, 0) : place;
    }
  }
}

} // namespace jit_passes::x86

#else

namespace jit_passes::x86 {

void Convolution::packVnni(const int8_t* weight) { packPlain(weight); }
int64_t Convolution::itemsVnni(const Image&, const Image&, const Image*) const { return 0; }
void Convolution::runVnni(const Image&, const Image&, const Requantize&, int64_t, int64_t) const {}

} // namespace jit_passes::x86

#endif
