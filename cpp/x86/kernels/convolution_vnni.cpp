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
  const uint8_t* residual[kHalf][2];
  int64_t skip[2];
  int64_t step;
};

// Codes of one tile; `count` of the 32 channels exist.
template <bool kResidual, bool kFull>
JIT_PASSES_VNNI void storeTile(
    const int32_t* sums, int64_t pixels, int64_t first, int64_t count, const Requantize& requantize,
    const Target& target) {
  const auto lanes = static_cast<__mmask32>(firstLanes(count));
  const auto lower = static_cast<__mmask16>(lanes), upper = static_cast<__mmask16>(lanes >> kLanes);
  const __m512 scale0 = _mm512_maskz_loadu_ps(lower, requantize.multiplier + first);
  const __m512 scale1 = _mm512_maskz_loadu_ps(upper, requantize.multiplier + first + kLanes);
  const __m512 offset0 = _mm512_maskz_loadu_ps(lower, requantize.offset + first);
  const __m512 offset1 = _mm512_maskz_loadu_ps(upper, requantize.offset + first + kLanes);
  const __m512 residual_scale = _mm512_set1_ps(requantize.residual_multiplier);
  const Rounding rounding = roundingTo(requantize.low, requantize.high);
  for (int64_t p = 0; p < pixels; ++p, sums += 4 * kLanes) {
    __m512 v[4] = {
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums)), scale0, offset0),
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + kLanes)), scale1, offset1),
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + 2 * kLanes)), scale0, offset0),
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + 3 * kLanes)), scale1, offset1)};
    if constexpr (kResidual) {
      for (int half = 0; half < 2; ++half) {
        const __m256i codes = _mm256_maskz_loadu_epi8(lanes, target.residual[p][half] + first);
        const __m512 r0 = floatsOf(_mm256_castsi256_si128(codes));
        const __m512 r1 = floatsOf(_mm256_extracti128_si256(codes, 1));
        v[2 * half] = _mm512_fmadd_ps(r0, residual_scale, v[2 * half]);
        v[2 * half + 1] = _mm512_fmadd_ps(r1, residual_scale, v[2 * half + 1]);
      }
    }
    __m512i codes = roundToCodes(v[0], v[1], v[2], v[3], rounding);
    if (requantize.table) {
      codes = lookUp(codes, loadTable(requantize.table));
    }
    const __m256i halves[2] = {_mm512_castsi512_si256(codes), _mm512_extracti64x4_epi64(codes, 1)};
    for (int half = 0; half < 2; ++half) {
      uint8_t* out = target.half[half] + p * target.step + first;
      if (p < target.skip[half]) {
        continue;
      }
      if constexpr (kFull) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), halves[half]);
      } else {
        _mm256_mask_storeu_epi8(out, lanes, halves[half]);
      }
    }
  }
}

using StoreTile = void (*)(const int32_t*, int64_t, int64_t, int64_t, const Requantize&, const Target&);
constexpr StoreTile kStoreTile[2][2] = {
    {storeTile<false, false>, storeTile<false, true>}, {storeTile<true, false>, storeTile<true, true>}};

bool isPointwise(const Window& w) {
  return w.taps() == 1 && w.stride_d == 1 && w.stride_h == 1 && w.stride_w == 1 && w.pad_front == 0 &&
         w.pad_top == 0 && w.pad_left == 0;
}

// One row after the other, where the pixels of all of them are evenly spaced in both images.
void joinRows(Image& in, Image& out) {
  const auto even = [](const Image& image, int64_t count, int64_t stride) {
    return count == 1 || stride == image.width * image.pixel;
  };
  const auto join = [&](int64_t Image::* count, int64_t Image::* stride) {
    const bool joined = even(in, in.*count, in.*stride) && even(out, out.*count, out.*stride);
    for (Image* image : {&in, &out}) {
      image->width *= joined ? image->*count : 1;
      image->*count = joined ? 1 : image->*count;
    }
    return joined;
  };
  join(&Image::height, &Image::row) && join(&Image::depth, &Image::plane) &&
      join(&Image::images, &Image::image);
}

bool sameStrides(const Image& a, const Image& b) {
  return a.pixel == b.pixel && a.row == b.row && a.plane == b.plane && a.image == b.image;
}

// Each row of the output in `parts` of `half` pixels, of which two make a tile.
struct Parts {
  Parts(const Window& window, Image in_image, Image out_image) : in(in_image), out(out_image) {
    if (isPointwise(window)) {
      joinRows(in, out);
    }
    parts = (out.width + kHalf - 1) / kHalf;
    half = parts ? (out.width + parts - 1) / parts : 0;
    tiles = (out.rows() * parts + 1) / 2;
  }

  Image in, out;
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
  const uint8_t* in = nullptr;
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

int64_t Convolution::itemsVnni(const Image& in, const Image& out) const {
  return Parts(window_, in, out).tiles * static_cast<int64_t>(blocks_.size());
}

// The larger of weights and input is gone through once, and divided between threads.
void Convolution::runVnni(
    const Image& in_image, const Image& out_image, const Requantize& requantize, int64_t begin,
    int64_t end) const {
  const Window& w = window_;
  const Parts work(w, in_image, out_image);
  const Image &in = work.in, &out = work.out;
  const bool by_block = static_cast<int64_t>(packed_.size()) > in.rows() * in.width * in.channels;
  const auto blocks = static_cast<int64_t>(blocks_.size());
  const Image* residual = requantize.residual;
  const bool alike = residual && sameStrides(*residual, out_image);

  int64_t jumps[kMostRuns], last = 0;
  const int64_t columns = runs_ / (w.kernel_d * w.kernel_h);
  for (int64_t run = 0; run < runs_; ++run) {
    const int64_t x = run % columns, y = run / columns % w.kernel_h, z = run / columns / w.kernel_h;
    const int64_t at = z * w.dilation_d * in.plane + y * w.dilation_h * in.row + x * w.dilation_w * in.pixel;
    jumps[std::max<int64_t>(run - 1, 0)] = at - last;
    last = at + 4 * quads_;
  }
  jumps[runs_ - 1] = 0;

  alignas(64) int32_t sums[kHalf * 4 * kLanes];
  Tile tile{{}, w.stride_w * in.pixel, jumps, runs_, quads_};
  Target target{};
  target.step = out.pixel;
  const auto setTile = [&](Place& place) {
    for (int64_t i = 0; i < 2; ++i) {
      // The last tile's second half may not exist: it repeats the first one and is not stored.
      const bool exists = place.row < out.rows();
      if (exists) {
        const int64_t x = place.column(work);
        tile.half[i] = place.in + x * tile.step;
        target.half[i] = place.out + x * out.pixel;
        target.skip[i] = place.part * work.half - x;
        for (int64_t p = 0; residual && p < work.half; ++p) {
          const int64_t pixel = place.row * out.width + x + p;
          target.residual[p][i] =
              alike ? residual->data + (target.half[i] + p * out.pixel - out.data)
                    : residual->rowAt(pixel / out_image.width) + pixel % out_image.width * residual->pixel;
        }
        place.next(work, w);
      } else {
        tile.half[i] = tile.half[0], target.half[i] = target.half[0], target.skip[i] = work.half;
        for (auto& pixel : target.residual) {
          pixel[i] = pixel[0];
        }
      }
    }
  };

  // While a block of weights is used, the tiles fetch the next one.
  const int64_t block_bytes = runs_ * quads_ * 2 * kLanes * 4, fetched_by_tile = runs_ * (quads_ / 4) * 128;
  const int64_t inner = by_block ? work.tiles : blocks;
  int64_t position = inner ? begin % inner : 0, outer = inner ? begin / inner : 0;
  Place place(work, w, 2 * (by_block ? position : outer));
  for (int64_t item = begin; item < end; ++item) {
    if (by_block || position == 0 || item == begin) {
      setTile(place);
    }
    const Block& block = blocks_[by_block ? outer : position];
    const int8_t* weight = packed_.data() + block.weight;
    const int64_t fetched = by_block ? position * fetched_by_tile : 0;
    const bool fetch = by_block && outer + 1 < blocks && fetched + fetched_by_tile <= block_bytes;
    kMultiplyTile[block.columns - 1][work.half - 1](
        tile, block.in_channel, weight, fetch ? weight + block_bytes + fetched : weight,
        start_.data() + (&block - blocks_.data()) * 2 * kLanes, sums);
    kStoreTile[residual != nullptr][block.count == 2 * kLanes](
        sums, work.half, block.first, block.count, requantize, target);
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
int64_t Convolution::itemsVnni(const Image&, const Image&) const { return 0; }
void Convolution::runVnni(const Image&, const Image&, const Requantize&, int64_t, int64_t) const {}

} // namespace jit_passes::x86

#endif
