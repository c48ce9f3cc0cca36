// Depthwise convolution for AVX-512 VNNI: dot products of four taps below each other.
//
// Four rows of the window are interleaved byte by byte, so that 32 bits are four taps of one channel; each
// interleaved column serves all taps and pixels of an unrolled stretch that use it. Bytes are interleaved within
// 128-bit lanes: register i of four has the channels 16 L + 4 i to 16 L + 4 i + 3 in lane L. Weights, starts and
// scales come in that order, and packing the results to bytes undoes it.
//
// Two neighbouring rows of the output share interleaved columns if four rows are enough for both. Each row has its
// own weights; the second row's are one row further down.
//
// A block has 64 channels. If at most 32 are left for the last block, the two halves of a register compute the left
// and the right half of a row.
//
// Weights: see depthwise_packing.cpp.
//
// Share of the peak, one thread, in the caches: 17 to 22 % for 3 x 3, 13 % with stride 2, 15 to 23 % for 5 x 5, 40 %
// for 7 x 7. A pixel of 64 channels takes 36 vector instructions: for 3 x 3, 12 are products, and 17 round and store
// the result.
#include <algorithm>
#include <cstring>

#include "depthwise_store.h"

#ifdef JIT_PASSES_HAS_VNNI

namespace jit_passes::x86 {
namespace {

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

// A window of any number of columns. Neighbouring pixels share all of them but one.
constexpr int kShared = -1;

// The unrolling of a stretch. `columns` is the width of a window without dilation, or 0 for any other window.
// `registers` of a block's four are computed at a time, for `pixels` pixels.
struct Unroll {
  int columns, stride, rows, pixels, registers;
  bool split;
  Ends ends;
};

// Interleaves one column of four rows of the window, or of one row, for some of the block's four registers.
template <Unroll kUnroll, bool kOneRow, int kFirst>
JIT_PASSES_VNNI_INLINE void takeColumn(
    const uint8_t* column, const Stretch& s, const int64_t* rows, __m512i (&v)[kUnroll.registers]) {
  constexpr bool kSplit = kUnroll.split;
  if constexpr (kOneRow) {
    const __m512i bytes = load<kSplit>(column + rows[0], s.second);
#pragma GCC unroll 4
    for (int i = 0; i < kUnroll.registers; ++i) {
      v[i] = spread(bytes, kFirst + i);
    }
    return;
  }
  const __m512i a = load<kSplit>(column + rows[0], s.second), b = load<kSplit>(column + rows[1], s.second);
  const __m512i c = load<kSplit>(column + rows[2], s.second), d = load<kSplit>(column + rows[3], s.second);
  if constexpr (kFirst == 0) {
    const __m512i ab = _mm512_unpacklo_epi8(a, b), cd = _mm512_unpacklo_epi8(c, d);
    v[0] = _mm512_unpacklo_epi16(ab, cd), v[1] = _mm512_unpackhi_epi16(ab, cd);
  }
  if constexpr (kFirst + kUnroll.registers == 4) {
    const __m512i ab = _mm512_unpackhi_epi8(a, b), cd = _mm512_unpackhi_epi8(c, d);
    v[2 - kFirst] = _mm512_unpacklo_epi16(ab, cd), v[3 - kFirst] = _mm512_unpackhi_epi16(ab, cd);
  }
}

template <Unroll kUnroll>
using Sums = __m512i[kUnroll.rows][kUnroll.pixels][kUnroll.registers];

// Adds the products of one interleaved column with one tap of each row, for one pixel.
template <Unroll kUnroll>
JIT_PASSES_VNNI_INLINE void addTap(
    const __m512i (&v)[kUnroll.registers], const int8_t* weight, int64_t set_bytes, int pixel,
    Sums<kUnroll>& sums) {
#pragma GCC unroll 2
  for (int row = 0; row < kUnroll.rows; ++row) {
#pragma GCC unroll 4
    for (int i = 0; i < kUnroll.registers; ++i) {
      const __m512i w = _mm512_load_si512(weight + row * set_bytes + i * kWide);
      sums[row][pixel][i] = _mm512_dpbusd_epi32(sums[row][pixel][i], v[i], w);
    }
  }
}

// Adds the products of four rows of the window, or of one, for neighbouring pixels.
template <Unroll kUnroll, bool kOneRow, int kFirst>
JIT_PASSES_VNNI_INLINE void addRows(
    const Stretch& s, const uint8_t* in, const int64_t* rows, const int8_t* weight, Sums<kUnroll>& sums) {
  const int64_t set_bytes = 4 * kWide * s.columns;
  __m512i v[kUnroll.registers];
  if constexpr (kUnroll.columns == kShared) {
    for (int64_t column = 0; column < s.columns + kUnroll.pixels - 1; ++column) {
      takeColumn<kUnroll, kOneRow, kFirst>(in + column * s.tap, s, rows, v);
#pragma GCC unroll 8
      for (int p = 0; p < kUnroll.pixels; ++p) {
        if (const int64_t tap = column - p; tap >= 0 && tap < s.columns) {
          addTap<kUnroll>(v, weight + tap * 4 * kWide, set_bytes, p, sums);
        }
      }
    }
  } else if constexpr (kUnroll.columns == 0) {
    for (int64_t tap = 0; tap < s.columns; ++tap, weight += 4 * kWide) {
#pragma GCC unroll 8
      for (int p = 0; p < kUnroll.pixels; ++p) {
        takeColumn<kUnroll, kOneRow, kFirst>(in + p * s.step + tap * s.tap, s, rows, v);
        addTap<kUnroll>(v, weight, set_bytes, p, sums);
      }
    }
  } else {
#pragma GCC unroll 32
    for (int column = 0; column < (kUnroll.pixels - 1) * kUnroll.stride + kUnroll.columns; ++column) {
      takeColumn<kUnroll, kOneRow, kFirst>(in + column * s.tap, s, rows, v);
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

// Computes the sums of neighbouring pixels.
template <Unroll kUnroll, int kFirst>
JIT_PASSES_VNNI_INLINE void addWindow(const Stretch& s, const uint8_t* in, Sums<kUnroll>& sums) {
#pragma GCC unroll 2
  for (int row = 0; row < kUnroll.rows; ++row) {
#pragma GCC unroll 8
    for (int p = 0; p < kUnroll.pixels; ++p) {
#pragma GCC unroll 4
      for (int i = 0; i < kUnroll.registers; ++i) {
        sums[row][p][i] = _mm512_load_si512(s.start + 16 * (kFirst + i));
      }
    }
  }
  const int8_t* weight = s.weight + kFirst * kWide;
  if constexpr (kUnroll.rows == 2) { // both rows share four rows of the window
    addRows<kUnroll, false, kFirst>(s, in, s.rows, weight, sums);
    return;
  }
  const int64_t full = s.last == 1 ? s.fours - 1 : s.fours;
  for (int64_t four = 0; four < full; ++four, weight += 4 * kWide * s.columns * s.sets) {
    addRows<kUnroll, false, kFirst>(s, in, s.rows + 4 * four, weight, sums);
  }
  if (full < s.fours) {
    addRows<kUnroll, true, kFirst>(s, in, s.rows + 4 * full, weight, sums);
  }
}

// Turns the sums of neighbouring pixels into float32, or into codes behind a function.
template <Unroll kUnroll>
JIT_PASSES_VNNI_INLINE void finishFloats(
    const Sums<kUnroll>& sums, const Stretch& s, int64_t x, int64_t skip) {
  alignas(64) float y[kUnroll.rows][kUnroll.pixels][kWide];
#pragma GCC unroll 2
  for (int row = 0; row < kUnroll.rows; ++row) {
#pragma GCC unroll 8
    for (int p = 0; p < kUnroll.pixels; ++p) {
      takeFloats(sums[row][p], s, y[row][p]);
    }
  }
  if (s.floats->function.which != FloatFunction::None) {
    s.floats->function.run(y[0][0], y[0][0], kUnroll.rows * kUnroll.pixels * kWide);
  }
  for (int row = 0; row < kUnroll.rows; ++row) {
    for (int64_t p = skip; p < kUnroll.pixels; ++p) {
      storeFloats<kUnroll.split>(y[row][p], s, row, x + p);
    }
  }
}

// Computes the pixels from x on. Pixels before `skip` are stored already.
template <Unroll kUnroll>
JIT_PASSES_VNNI_INLINE void computePixels(const Stretch& s, const Scaling& scaling, int64_t x, int64_t skip) {
  constexpr bool kAtOnce = kUnroll.registers == 4;
  __m512i halves[kUnroll.rows][kUnroll.pixels];
  Sums<kUnroll> sums;
  addWindow<kUnroll, 0>(s, s.in + x * s.step, sums);
  if constexpr (!kAtOnce) {
#pragma GCC unroll 2
    for (int row = 0; row < kUnroll.rows; ++row) {
#pragma GCC unroll 8
      for (int p = 0; p < kUnroll.pixels; ++p) {
        halves[row][p] = halfOf<kUnroll.split, kUnroll.ends, 0>(sums[row][p], s, scaling, row, x + p);
        asm volatile("" : "+v"(halves[row][p])); // else g++ keeps the sums until then
      }
    }
    addWindow<kUnroll, 2>(s, s.in + x * s.step, sums);
  }
  if constexpr (kUnroll.ends == Ends::Floats) {
    return finishFloats<kUnroll>(sums, s, x, skip);
  }
#pragma GCC unroll 2
  for (int row = 0; row < kUnroll.rows; ++row) {
#pragma GCC unroll 8
    for (int p = 0; p < kUnroll.pixels; ++p) {
      const auto& sum = sums[row][p];
      if (p < skip) {
        continue;
      }
      if constexpr (kAtOnce) {
        halves[row][p] = halfOf<kUnroll.split, kUnroll.ends, 0>(sum, s, scaling, row, x + p);
      }
      const __m512i other = halfOf<kUnroll.split, kUnroll.ends, 2>(sum, s, scaling, row, x + p);
      const bool direct = kUnroll.ends == Ends::BareCodes || scaling.rounding.direct;
      const __m512i codes = joinHalves(halves[row][p], other, direct, scaling.rounding);
      storeCodes<kUnroll.split, kUnroll.ends>(codes, s, row, x + p);
    }
  }
}

// Half of the registers for twice as many pixels need half as many loads of weights, and twice as many loads of
// columns. With two rows there are few columns to load.
template <int kColumns, int kStride, int kRows, bool kSplit, Ends kEnds>
JIT_PASSES_VNNI void computeStretch(const Stretch& s, int64_t width) {
  constexpr int kRegisters = kEnds == Ends::BareCodes && kRows == 2 && kColumns > 0 ? 2 : 4;
  constexpr int kMost = 16 / kRegisters / kRows, kFewer = kMost / 2;
  const Scaling scaling{s.scale, s.offset, s.rounding};
  int64_t x = 0;
  for (; width >= kMost && x < width; x += kMost) {
    const int64_t begin = std::min(x, width - kMost);
    constexpr Unroll kUnroll{kColumns, kStride, kRows, kMost, kRegisters, kSplit, kEnds};
    computePixels<kUnroll>(s, scaling, begin, x - begin);
  }
  for (; width >= kFewer && x < width; x += kFewer) {
    const int64_t begin = std::min(x, width - kFewer);
    constexpr Unroll kUnroll{kColumns, kStride, kRows, kFewer, kRegisters, kSplit, kEnds};
    computePixels<kUnroll>(s, scaling, begin, x - begin);
  }
  for (; x < width; ++x) {
    constexpr Unroll kUnroll{kColumns, kStride, kRows, 1, kRegisters, kSplit, kEnds};
    computePixels<kUnroll>(s, scaling, x, 0);
  }
}

using ComputeStretch = void (*)(const Stretch&, int64_t);

template <int kRows, bool kSplit, Ends kEnds>
ComputeStretch computeStretchFor(const Window& w, bool is_shared) {
  if (kRows == 1 && is_shared) {
    return computeStretch<kShared, 1, 1, kSplit, kEnds>;
  }
  const int64_t key = w.dilation_w == 1 ? 10 * w.kernel_w + w.stride_w : 0;
  if constexpr (kRows == 1) {
    switch (key) {
      case 32: return computeStretch<3, 2, kRows, kSplit, kEnds>;
      case 51: return computeStretch<5, 1, kRows, kSplit, kEnds>;
      case 52: return computeStretch<5, 2, kRows, kSplit, kEnds>;
      case 71: return computeStretch<7, 1, kRows, kSplit, kEnds>;
      default: break;
    }
  }
  return key == 31 ? computeStretch<3, 1, kRows, kSplit, kEnds> : computeStretch<0, 0, kRows, kSplit, kEnds>;
}

// The functions for one row of the output or two, and for split blocks and others.
struct Stretches {
  ComputeStretch compute[2][2];
};

template <Ends kEnds>
Stretches stretchesFor(const Window& w, bool is_shared) {
  return {
      {{computeStretchFor<1, false, kEnds>(w, is_shared), computeStretchFor<1, true, kEnds>(w, is_shared)},
       {computeStretchFor<2, false, kEnds>(w, is_shared), computeStretchFor<2, true, kEnds>(w, is_shared)}}};
}

Stretches stretchesOf(const Requantize& how, bool direct, const Window& w, bool is_shared) {
  const bool is_bare = direct && !how.residual && !how.table;
  return is_bare ? stretchesFor<Ends::BareCodes>(w, is_shared) : stretchesFor<Ends::Codes>(w, is_shared);
}

Stretches stretchesOf(const SumsToFloats&, bool, const Window& w, bool is_shared) {
  return stretchesFor<Ends::Floats>(w, is_shared);
}

} // namespace

template <typename How>
JIT_PASSES_VNNI void Convolution::runDepthwiseVnni(
    const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const {
  const bool is_folded = isFolded(window_, form_);
  const Window w = is_folded ? folded(window_) : window_;
  // Pixels whose distance is a column of a folded window share columns, so they are computed together.
  const bool is_shared = is_folded && w.stride_w == 1;
  const int64_t apart = is_shared ? w.dilation_w : 1;
  const Image* residual = how.residual;
  Stretch s{};
  s.sets = sharesRows(w) ? 2 : 1;
  const int64_t rows = w.kernel_d * w.kernel_h;
  s.fours = foursOf(w);
  s.last = rows + s.sets - 1 - 4 * (s.fours - 1);
  int64_t offsets[2][4 * kMostFours];
  if (is_folded) {
    for (int64_t tap = 0; tap < 4; ++tap) {
      offsets[0][tap] = tap * window_.dilation_w * in.pixel;
    }
  } else {
    setRowOffsets(w, in, offsets);
  }
  s.step = apart * w.stride_w * in.pixel;
  s.tap = w.dilation_w * in.pixel;
  s.columns = w.kernel_w;
  setHow(how, out_channels_, s);
  const int64_t residual_pixel = s.residual_step;
  s.out_step = apart * out.pixel, s.residual_step = apart * residual_pixel;
  const auto computeRow = [&](ComputeStretch compute, bool split, int64_t width) {
    const int64_t half = (width + 1) / 2, shift = width - half;
    s.second = shift * s.step;
    s.second_begin = half - shift;
    s.out_second = shift * s.out_step;
    s.residual_second = shift * s.residual_step;
    compute(s, split ? half : width);
  };
  const Stretches stretches = stretchesOf(how, s.rounding.direct, w, is_shared);
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
    setScales(how, block.first, ((n * out.depth + z) * out.height + y) * out.width, split, s);
    s.rows = offsets[together - 1];
    for (int64_t row = 0; row < count; row += together) {
      s.in = in.at(n, z * w.stride_d - w.pad_front, (y + row) * w.stride_h - w.pad_top, -w.pad_left) +
             block.first;
      for (int64_t i = 0; i < together; ++i) {
        s.out[i] = out.at(n, z, y + row + i, 0) + block.first * s.bytes;
        s.residual[i] =
            residual ? residual->at(n, z, y + row + i, 0) + block.first * s.residual_bytes : nullptr;
      }
      for (int64_t first = 0; first < std::min(apart, out.width); ++first) {
        computeRow(stretches.compute[together - 1][split], split, (out.width - first + apart - 1) / apart);
        s.in += in.pixel, s.out[0] += out.pixel;
        s.residual[0] = residual ? s.residual[0] + residual_pixel : nullptr;
      }
    }
  }
}

} // namespace jit_passes::x86

#else

namespace jit_passes::x86 {

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
