// Depthwise convolution for AVX-512 VNNI: dot products of four taps below each other.
//
// Four rows of the window are interleaved byte by byte, so that 32 bits are four taps of one channel; each
// interleaved column serves all taps and pixels of an unrolled stretch that use it. Bytes are interleaved within
// 128-bit lanes: register i of four has the channels 16 L + 4 i to 16 L + 4 i + 3 in lane L. Weights, starts and
// scales come in that order, and packing the results to bytes undoes it.
//
// Two rows of the output that are neighbours share interleaved columns where four rows are enough for both. They have
// weights of their own, those of the second row one row further down.
//
// A block has 64 channels. In the last one, if no more than 32 are left, the halves of a register take the left and
// the right half of a row.
//
// Weights: [block][rows in fours][row of the output][column of the window][register][channel][4], with zeros where
// the window of that row has none.
//
// Share of the peak, one thread, in the caches: 13 to 18 % for 3 x 3, 14 to 25 % for 5 x 5, 34 % for 7 x 7. Of 41
// vector instructions per pixel and 64 channels, 12 are products for 3 x 3, 21 round and store the result.
#include <algorithm>
#include <cstring>

#include "depthwise_store.h"

#ifdef JIT_PASSES_HAS_VNNI

namespace jit_passes::x86 {
namespace {

constexpr int64_t kMostFours = 64;

template <bool kSplit>
JIT_PASSES_VNNI_INLINE __m512i load(const uint8_t* from, int64_t second) {
  if constexpr (kSplit) {
    const __m256i lower = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i upper = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + second));
    return _mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1);
  } else {
    return _mm512_loadu_si512(from);
  }
}

// One column of four rows of the window, or of one: the four registers of the block.
template <bool kSplit, bool kOneRow>
JIT_PASSES_VNNI_INLINE void takeColumn(
    const uint8_t* column, const Stretch& s, const int64_t* rows, __m512i (&v)[4]) {
  if constexpr (kOneRow) {
    const __m512i bytes = load<kSplit>(column + rows[0], s.second);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      v[i] = spread(bytes, i);
    }
    return;
  }
  const __m512i a = load<kSplit>(column + rows[0], s.second), b = load<kSplit>(column + rows[1], s.second);
  const __m512i c = load<kSplit>(column + rows[2], s.second), d = load<kSplit>(column + rows[3], s.second);
  const __m512i ab0 = _mm512_unpacklo_epi8(a, b), ab1 = _mm512_unpackhi_epi8(a, b);
  const __m512i cd0 = _mm512_unpacklo_epi8(c, d), cd1 = _mm512_unpackhi_epi8(c, d);
  v[0] = _mm512_unpacklo_epi16(ab0, cd0);
  v[1] = _mm512_unpackhi_epi16(ab0, cd0);
  v[2] = _mm512_unpacklo_epi16(ab1, cd1);
  v[3] = _mm512_unpackhi_epi16(ab1, cd1);
}

// How a stretch is unrolled. `columns` is the width of a window without dilation, and 0 stands for any other one.
struct Unroll {
  int columns, stride, rows, pixels;
  bool split;
};

// Adds the products of one interleaved column with one tap of each row, for one pixel.
template <Unroll kUnroll>
JIT_PASSES_VNNI_INLINE void addTap(
    const __m512i (&v)[4], const int8_t* weight, int64_t set_bytes, int pixel,
    __m512i (&sums)[kUnroll.rows][kUnroll.pixels][4]) {
#pragma GCC unroll 2
  for (int row = 0; row < kUnroll.rows; ++row) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i w = _mm512_load_si512(weight + row * set_bytes + i * kWide);
      sums[row][pixel][i] = _mm512_dpbusd_epi32(sums[row][pixel][i], v[i], w);
    }
  }
}

// Adds the products of four rows of the window, or of one, for neighbouring pixels.
template <Unroll kUnroll, bool kOneRow>
JIT_PASSES_VNNI_INLINE void addRows(
    const Stretch& s, const uint8_t* in, const int64_t* rows, const int8_t* weight,
    __m512i (&sums)[kUnroll.rows][kUnroll.pixels][4]) {
  const int64_t set_bytes = 4 * kWide * s.columns;
  __m512i v[4];
  if constexpr (kUnroll.columns == 0) {
    for (int64_t tap = 0; tap < s.columns; ++tap, weight += 4 * kWide) {
#pragma GCC unroll 8
      for (int p = 0; p < kUnroll.pixels; ++p) {
        takeColumn<kUnroll.split, kOneRow>(in + p * s.step + tap * s.tap, s, rows, v);
        addTap<kUnroll>(v, weight, set_bytes, p, sums);
      }
    }
  } else {
#pragma GCC unroll 32
    for (int column = 0; column < (kUnroll.pixels - 1) * kUnroll.stride + kUnroll.columns; ++column) {
      takeColumn<kUnroll.split, kOneRow>(in + column * s.tap, s, rows, v);
#pragma GCC unroll 8
      for (int p = 0; p < kUnroll.pixels; ++p) {
        const int tap = column - p * kUnroll.stride;
        if (tap >= 0 && tap < kUnroll.columns) {
          addTap<kUnroll>(v, weight + tap * 4 * kWide, set_bytes, p, sums);
        }
      }
    }
  }
}

// The pixels from x on; those before `skip` are stored already.
template <Unroll kUnroll>
JIT_PASSES_VNNI_INLINE void computePixels(const Stretch& s, int64_t x, int64_t skip) {
  __m512i sums[kUnroll.rows][kUnroll.pixels][4];
#pragma GCC unroll 2
  for (int row = 0; row < kUnroll.rows; ++row) {
#pragma GCC unroll 8
    for (int p = 0; p < kUnroll.pixels; ++p) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sums[row][p][i] = _mm512_load_si512(s.start + 16 * i);
      }
    }
  }
  const int8_t* weight = s.weight;
  const uint8_t* in = s.in + x * s.step;
  const int64_t full = s.last == 1 ? s.fours - 1 : s.fours;
  for (int64_t four = 0; four < full; ++four, weight += 4 * kWide * s.columns * s.sets) {
    addRows<kUnroll, false>(s, in, s.rows + 4 * four, weight, sums);
  }
  if (full < s.fours) {
    addRows<kUnroll, true>(s, in, s.rows + 4 * full, weight, sums);
  }
#pragma GCC unroll 2
  for (int row = 0; row < kUnroll.rows; ++row) {
#pragma GCC unroll 8
    for (int p = 0; p < kUnroll.pixels; ++p) {
      if (p >= skip) {
        storePixel<kUnroll.split>(sums[row][p], s, row, x + p);
      }
    }
  }
}

template <int kColumns, int kStride, int kRows, bool kSplit>
JIT_PASSES_VNNI void computeStretch(const Stretch& s, int64_t width) {
  constexpr int kPixels = 4 / kRows;
  if (width < kPixels) {
    for (int64_t x = 0; x < width; ++x) {
      computePixels<Unroll{kColumns, kStride, kRows, 1, kSplit}>(s, x, 0);
    }
    return;
  }
  for (int64_t x = 0; x < width; x += kPixels) {
    const int64_t begin = std::min(x, width - kPixels);
    computePixels<Unroll{kColumns, kStride, kRows, kPixels, kSplit}>(s, begin, x - begin);
  }
}

using ComputeStretch = void (*)(const Stretch&, int64_t);

template <int kRows, bool kSplit>
ComputeStretch computeStretchFor(const Window& w) {
  const int64_t key = w.dilation_w == 1 ? 10 * w.kernel_w + w.stride_w : 0;
  if constexpr (kRows == 1) {
    switch (key) {
      case 32: return computeStretch<3, 2, kRows, kSplit>;
      case 51: return computeStretch<5, 1, kRows, kSplit>;
      case 52: return computeStretch<5, 2, kRows, kSplit>;
      case 71: return computeStretch<7, 1, kRows, kSplit>;
      default: break;
    }
  }
  return key == 31 ? computeStretch<3, 1, kRows, kSplit> : computeStretch<0, 0, kRows, kSplit>;
}

// Whether four rows of the image are enough for two rows of the output. Where they are not, the registers do not
// suffice for two either.
bool sharesRows(const Window& w) {
  const bool neighbours = w.stride_h == 1 && w.dilation_h == 1 && w.kernel_d == 1;
  return neighbours && w.kernel_h > 1 && w.kernel_h + 1 <= 4;
}

} // namespace

void Convolution::packDepthwiseVnni(const int8_t* weight) {
  const Window& w = window_;
  const int64_t sets = sharesRows(w) ? 2 : 1;
  const int64_t rows = w.kernel_d * w.kernel_h, fours = (rows + sets - 1 + 3) / 4, taps = w.taps();
  if (fours > kMostFours) {
    form_ = Form::Plain;
    packDepthwise(weight);
    return;
  }
  AlignedVector<int32_t> start;
  for (int64_t first = 0; first < out_channels_; first += kWide) {
    const int64_t count = std::min(kWide, out_channels_ - first);
    const bool split = count <= kWide / 2;
    blocks_.push_back({first, count, split ? 2 : 1, first, static_cast<int64_t>(packed_.size())});
    packed_.resize(packed_.size() + fours * sets * w.kernel_w * kWide * 4);
    start.resize(start.size() + kWide);
    for (int64_t i = 0; i < kWide; ++i) {
      const int64_t c = split ? channelAt(i) % (kWide / 2) : channelAt(i);
      if (c >= count) {
        continue;
      }
      start[start.size() - kWide + i] = start_[first + c];
      for (int64_t tap = 0; tap < taps; ++tap) {
        for (int64_t set = 0; set < sets; ++set) {
          const int64_t row = tap / w.kernel_w + set, column = row / 4 * sets + set;
          packed_
              [blocks_.back().weight + ((column * w.kernel_w + tap % w.kernel_w) * kWide + i) * 4 + row % 4] =
                  weight[(first + c) * taps + tap];
        }
      }
    }
  }
  start_ = std::move(start);
}

// An item is a block of channels of two rows.
int64_t Convolution::itemsDepthwiseVnni(const Image& out) const {
  return out.images * out.depth * ((out.height + 1) / 2) * static_cast<int64_t>(blocks_.size());
}

template <typename How>
JIT_PASSES_VNNI void Convolution::runDepthwiseVnni(
    const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const {
  const Window& w = window_;
  constexpr bool kFloats = std::is_same_v<How, SumsToFloats>;
  const Image* residual = kFloats ? nullptr : how.residual; // of float32, finishRow adds it
  Stretch s{};
  s.sets = sharesRows(w) ? 2 : 1;
  const int64_t rows = w.kernel_d * w.kernel_h;
  s.fours = (rows + s.sets - 1 + 3) / 4;
  s.last = rows + s.sets - 1 - 4 * (s.fours - 1);
  // Rows without weights are read too: for one row of the output these are rows of its own window, and for two
  // those of both windows.
  int64_t offsets[2][4 * kMostFours];
  for (int64_t row = 0; row < 4 * s.fours; ++row) {
    const int64_t own = std::min(row, rows - 1), both = std::min(row, rows);
    offsets[0][row] = own / w.kernel_h * w.dilation_d * in.plane + own % w.kernel_h * w.dilation_h * in.row;
    offsets[1][row] = both * in.row;
  }
  s.step = w.stride_w * in.pixel;
  s.tap = w.dilation_w * in.pixel;
  s.columns = w.kernel_w;
  s.out_step = out.pixel;
  setHow(how, out_channels_, s);
  const int64_t half = (out.width + 1) / 2, shift = out.width - half;
  s.second = shift * s.step;
  s.second_begin = half - shift;
  s.out_second = shift * s.out_step;
  s.residual_second = shift * s.residual_step;
  const ComputeStretch compute[2][2] = {
      {computeStretchFor<1, false>(w), computeStretchFor<1, true>(w)},
      {computeStretchFor<2, false>(w), computeStretchFor<2, true>(w)}};
  const auto blocks = static_cast<int64_t>(blocks_.size());
  const int64_t pairs = (out.height + 1) / 2;
  for (int64_t item = begin; item < end; ++item) {
    const Block& block = blocks_[item % blocks];
    const bool split = block.columns == 2;
    const int64_t pair = item / blocks, y = pair % pairs * 2;
    const int64_t z = pair / pairs % out.depth, n = pair / pairs / out.depth;
    const int64_t count = std::min<int64_t>(2, out.height - y), together = count == 2 ? s.sets : 1;
    s.weight = packed_.data() + block.weight;
    s.start = start_.data() + item % blocks * kWide;
    s.count = block.count;
    setScales(how, block.first, split, s);
    s.rows = offsets[together - 1];
    for (int64_t row = 0; row < count; row += together) {
      s.in = in.at(n, z * w.stride_d - w.pad_front, (y + row) * w.stride_h - w.pad_top, -w.pad_left) +
             block.first;
      for (int64_t i = 0; i < together; ++i) {
        s.out[i] = out.at(n, z, y + row + i, 0) + block.first * int64_t(kFloats ? sizeof(float) : 1);
        s.residual[i] = residual ? residual->at(n, z, y + row + i, 0) + block.first : nullptr;
      }
      compute[together - 1][split](s, split ? half : out.width);
      for (int64_t i = 0; i < together; ++i) {
        finishRow(how, out, {n, z, y + row + i, 0}, block.first, block.count);
      }
    }
  }
}

} // namespace jit_passes::x86

#else

namespace jit_passes::x86 {

void Convolution::packDepthwiseVnni(const int8_t* weight) { packDepthwise(weight); }
int64_t Convolution::itemsDepthwiseVnni(const Image& out) const { return out.rows(); }
template <typename How>
void Convolution::runDepthwiseVnni(const Image&, const Image&, const How&, int64_t, int64_t) const {}

} // namespace jit_passes::x86

#endif

namespace jit_passes::x86 {

template void Convolution::runDepthwiseVnni(
    const Image& in, const Image& out, const Requantize& how, int64_t begin, int64_t end) const;
template void Convolution::runDepthwiseVnni(
    const Image& in, const Image& out, const SumsToFloats& how, int64_t begin, int64_t end) const;

} // namespace jit_passes::x86
