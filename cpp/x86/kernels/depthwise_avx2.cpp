// Depthwise convolution for AVX-VNNI and for AVX2 alone: dot products of four taps below each other, as for AVX-512
// (depthwise_vnni.cpp), in blocks of 32 channels.
//
// Four rows of the window are interleaved byte by byte, so that 32 bits are four taps of one channel. AVX-VNNI
// multiplies them directly. AVX2 alone separates even and odd bytes as 16 bits, for two products of pairs. Weights
// are separated in this way too, once for a block and two rows of the output.
//
// Two neighbouring rows of the output share interleaved columns if four rows are enough for both; otherwise two
// pixels do.
#include "depthwise.h"

#include <algorithm>

#include "avx2.h"
#include "plain.h"

#ifdef JIT_PASSES_HAS_AVX2

namespace jit_passes::x86 {
namespace {

constexpr int64_t kChannels256 = 32;

// A block of channels along one row of the output, or two rows.
struct Stretch256 {
  const uint8_t* in;   // the first tap of the first pixel
  const int64_t* rows; // bytes to each row of the window, in fours
  int64_t fours, columns, sets, step, tap;
  const int8_t* weight; // in 16 bits for AVX2 alone
  const int32_t* start;
};

JIT_PASSES_AVX2_INLINE void takeColumn256(const uint8_t* column, const int64_t* rows, __m256i (&v)[4]) {
  const __m256i a = load256(column + rows[0]), b = load256(column + rows[1]);
  const __m256i c = load256(column + rows[2]), d = load256(column + rows[3]);
  const __m256i ab0 = _mm256_unpacklo_epi8(a, b), ab1 = _mm256_unpackhi_epi8(a, b);
  const __m256i cd0 = _mm256_unpacklo_epi8(c, d), cd1 = _mm256_unpackhi_epi8(c, d);
  v[0] = _mm256_unpacklo_epi16(ab0, cd0);
  v[1] = _mm256_unpackhi_epi16(ab0, cd0);
  v[2] = _mm256_unpacklo_epi16(ab1, cd1);
  v[3] = _mm256_unpackhi_epi16(ab1, cd1);
}

// The unrolling of a stretch. `columns` is the width of a window without dilation, or 0 for any other window. The
// sums of two results are in registers.
struct Unroll256 {
  bool vnni;
  int columns, stride, rows, pixels;
};

// The bytes of the weights of one tap.
constexpr int64_t tapBytes(bool vnni) { return kChannels256 * (vnni ? 4 : 8); }

// Adds the products of one interleaved column with one tap of each row, for one pixel.
template <Unroll256 kUnroll>
JIT_PASSES_AVX2_INLINE void addTap256(
    const __m256i (&v)[4], const int8_t* weight, int64_t set_bytes, int pixel,
    __m256i (&sums)[kUnroll.rows][kUnroll.pixels][4]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256i even = _mm256_and_si256(v[i], _mm256_set1_epi16(0xFF)), odd = _mm256_srli_epi16(v[i], 8);
#pragma GCC unroll 2
    for (int row = 0; row < kUnroll.rows; ++row) {
      const int8_t* from = weight + row * set_bytes;
      __m256i sum = sums[row][pixel][i]; // as an operand of the assembly, an array would stay in memory
      if constexpr (kUnroll.vnni) {
        const auto& w = *reinterpret_cast<const __m256i*>(from + 32 * i);
        asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(v[i]), "m"(w));
      } else {
        // With intrinsics, g++ 12 needs more registers than there are.
        const auto& w = *reinterpret_cast<const __m256i(*)[2]>(from + 64 * i);
        __m256i products;
        asm("vpmaddwd %4, %2, %1\n"
            "vpaddd %1, %0, %0\n"
            "vpmaddwd %5, %3, %1\n"
            "vpaddd %1, %0, %0"
            : "+x"(sum), "=&x"(products)
            : "x"(even), "x"(odd), "m"(w[0]), "m"(w[1]));
      }
      sums[row][pixel][i] = sum;
    }
  }
}

// Adds the products of four rows of the window for neighbouring pixels.
template <Unroll256 kUnroll>
JIT_PASSES_AVX2_INLINE void addRows256(
    const Stretch256& s, const uint8_t* in, const int64_t* rows, const int8_t* weight,
    __m256i (&sums)[kUnroll.rows][kUnroll.pixels][4]) {
  constexpr int64_t kTapBytes = tapBytes(kUnroll.vnni);
  const int64_t set_bytes = kTapBytes * s.columns;
  __m256i v[4];
  if constexpr (kUnroll.columns == 0) {
    for (int64_t tap = 0; tap < s.columns; ++tap, weight += kTapBytes) {
#pragma GCC unroll 2
      for (int p = 0; p < kUnroll.pixels; ++p) {
        takeColumn256(in + p * s.step + tap * s.tap, rows, v);
        addTap256<kUnroll>(v, weight, set_bytes, p, sums);
      }
    }
  } else {
#pragma GCC unroll 16
    for (int column = 0; column < (kUnroll.pixels - 1) * kUnroll.stride + kUnroll.columns; ++column) {
      takeColumn256(in + column * s.tap, rows, v);
#pragma GCC unroll 2
      for (int p = 0; p < kUnroll.pixels; ++p) {
        const int tap = column - p * kUnroll.stride;
        if (tap >= 0 && tap < kUnroll.columns) {
          addTap256<kUnroll>(v, weight + tap * kTapBytes, set_bytes, p, sums);
        }
      }
    }
  }
}

// Turns the sums of a block's pixels into codes. Scales are in the order of its registers.
class ToCodes256 {
 public:
  JIT_PASSES_AVX2 explicit ToCodes256(const Requantize& how) : how_(how), rounding_(how.range) {}

  void enter(int64_t first, int64_t count) {
    first_ = first, count_ = count;
    for (int64_t c = 0; c < kChannels256; ++c) {
      const int64_t at = c % 16 / 4 * 8 + c / 16 * 4 + c % 4;
      multiplier_[at] = c < count ? how_.multiplier[first + c] : 0;
      offset_[at] = c < count ? how_.offset[first + c] : 0;
    }
  }

  JIT_PASSES_AVX2_INLINE void put(const __m256i (&sums)[4], const Image& image, const Pixel& pixel) const {
    __m256 v[4];
    __m256i residual = _mm256_setzero_si256();
    if (how_.residual) {
      residual = load256(pixel.in(*how_.residual) + first_);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m256 with = _mm256_load_ps(offset_ + 8 * i);
      if (how_.residual) {
        const auto spread = static_cast<int>(0x80808000);
        const __m256i index = _mm256_broadcastsi128_si256(
            _mm_setr_epi32(spread + 4 * i, spread + 4 * i + 1, spread + 4 * i + 2, spread + 4 * i + 3));
        const __m256 other = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(residual, index));
        with = _mm256_fmadd_ps(other, _mm256_set1_ps(how_.residual_multiplier), with);
      }
      v[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[i]), _mm256_load_ps(multiplier_ + 8 * i), with);
    }
    uint8_t* out = pixel.in(image) + first_;
    storeFirst(out, packCodes(v, rounding_), count_);
    lookUpInPlace(out, count_, how_.table);
  }

 private:
  const Requantize& how_;
  Rounding256 rounding_;
  int64_t first_ = 0, count_ = 0;
  alignas(32) float multiplier_[kChannels256], offset_[kChannels256];
};

class ToFloats256 {
 public:
  explicit ToFloats256(const SumsToFloats& how) : how_(how) {}

  void enter(int64_t first, int64_t count) { first_ = first, count_ = count; }

  JIT_PASSES_AVX2_INLINE void put(const __m256i (&sums)[4], const Image& image, const Pixel& pixel) const {
    alignas(32) int32_t in_order[kChannels256];
    for (int i = 0; i < 4; ++i) {
      _mm_store_si128(reinterpret_cast<__m128i*>(in_order + 4 * i), _mm256_castsi256_si128(sums[i]));
      _mm_store_si128(
          reinterpret_cast<__m128i*>(in_order + 16 + 4 * i), _mm256_extracti128_si256(sums[i], 1));
    }
    store(in_order, count_, first_, pixel, image, how_);
  }

 private:
  const SumsToFloats& how_;
  int64_t first_ = 0, count_ = 0;
};

// Computes the pixels from x on. Pixels before `skip` are stored already.
template <Unroll256 kUnroll, typename Put>
JIT_PASSES_AVX2_INLINE void computePixels256(
    const Stretch256& s, const Put& put, const Image& out, const Pixel& at, int64_t skip) {
  __m256i sums[kUnroll.rows][kUnroll.pixels][4];
#pragma GCC unroll 2
  for (int row = 0; row < kUnroll.rows; ++row) {
#pragma GCC unroll 2
    for (int p = 0; p < kUnroll.pixels; ++p) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sums[row][p][i] = load256(s.start + 8 * i);
      }
    }
  }
  const int8_t* weight = s.weight;
  const uint8_t* in = s.in + at.x * s.step;
  for (int64_t four = 0; four < s.fours; ++four, weight += tapBytes(kUnroll.vnni) * s.columns * s.sets) {
    addRows256<kUnroll>(s, in, s.rows + 4 * four, weight, sums);
  }
#pragma GCC unroll 2
  for (int row = 0; row < kUnroll.rows; ++row) {
#pragma GCC unroll 2
    for (int p = 0; p < kUnroll.pixels; ++p) {
      if (p >= skip) {
        put.put(sums[row][p], out, {at.n, at.z, at.y + row, at.x + p});
      }
    }
  }
}

// Computes one or two rows of the output, from `at` on.
template <bool kVnni, int kColumns, int kStride, int kRows, typename Put>
JIT_PASSES_AVX2 void computeStretch256(
    const Stretch256& stretch, const Put& put, const Image& image, const Pixel& at) {
  constexpr int kPixels = 2 / kRows;
  const Stretch256 s = stretch; // a copy, since stores of bytes may change any object
  const Image out = image;
  Pixel pixel = at;
  if (out.width < kPixels) {
    return computePixels256<Unroll256{kVnni, kColumns, kStride, kRows, 1}>(s, put, out, pixel, 0);
  }
  for (int64_t x = 0; x < out.width; x += kPixels) {
    pixel.x = std::min(x, out.width - kPixels);
    computePixels256<Unroll256{kVnni, kColumns, kStride, kRows, kPixels}>(s, put, out, pixel, x - pixel.x);
  }
}

template <typename Put>
using ComputeStretch256 = void (*)(const Stretch256&, const Put&, const Image&, const Pixel&);

template <bool kVnni, int kRows, typename Put>
ComputeStretch256<Put> computeStretch256For(const Window& w) {
  const int64_t key = w.dilation_w == 1 ? 10 * w.kernel_w + w.stride_w : 0;
  if constexpr (kRows == 1) {
    switch (key) {
      case 32: return computeStretch256<kVnni, 3, 2, kRows, Put>;
      case 51: return computeStretch256<kVnni, 5, 1, kRows, Put>;
      case 52: return computeStretch256<kVnni, 5, 2, kRows, Put>;
      case 71: return computeStretch256<kVnni, 7, 1, kRows, Put>;
      default: break;
    }
  }
  return key == 31 ? computeStretch256<kVnni, 3, 1, kRows, Put> : computeStretch256<kVnni, 0, 0, kRows, Put>;
}

// Widens the weights of four taps to 16 bits: even ones, then odd ones.
JIT_PASSES_AVX2 void takeApart(const int8_t* weight, int64_t registers, int8_t* to) {
  for (int64_t i = 0; i < registers; ++i) {
    const __m256i bytes = load256(weight + 32 * i);
    auto* out = reinterpret_cast<__m256i*>(to + 64 * i);
    _mm256_store_si256(out, _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8));
    _mm256_store_si256(out + 1, _mm256_srai_epi16(bytes, 8));
  }
}

} // namespace

template <typename How>
void Convolution::runDepthwiseAvx2(
    const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const {
  using Put = std::conditional_t<std::is_same_v<How, SumsToFloats>, ToFloats256, ToCodes256>;
  const Window& w = window_;
  const bool vnni = form_ == Form::AvxVnni;
  Stretch256 s{};
  s.sets = sharesRows(w) ? 2 : 1;
  s.fours = foursOf(w), s.columns = w.kernel_w;
  s.step = w.stride_w * in.pixel, s.tap = w.dilation_w * in.pixel;
  int64_t offsets[2][4 * kMostFours];
  setRowOffsets(w, in, offsets);
  alignas(64) int8_t wide[2 * kMostFours * kChannels256 * 8];
  Put put(how);
  const ComputeStretch256<Put> compute[2] = {
      vnni ? computeStretch256For<true, 1, Put>(w) : computeStretch256For<false, 1, Put>(w),
      vnni ? computeStretch256For<true, 2, Put>(w) : computeStretch256For<false, 2, Put>(w)};
  const auto blocks = static_cast<int64_t>(blocks_.size());
  const int64_t pairs = (out.height + 1) / 2;
  for (int64_t item = begin; item < end; ++item) {
    const Block& block = blocks_[item % blocks];
    const int64_t pair = item / blocks, y = pair % pairs * 2;
    const int64_t z = pair / pairs % out.depth, n = pair / pairs / out.depth;
    const int64_t count = std::min<int64_t>(2, out.height - y), together = count == 2 ? s.sets : 1;
    s.weight = packed_.data() + block.weight;
    if (!vnni) {
      takeApart(s.weight, s.fours * s.sets * s.columns * 4, wide);
      s.weight = wide;
    }
    s.start = start_.data() + item % blocks * kChannels256;
    s.rows = offsets[together - 1];
    put.enter(block.first, block.count);
    for (int64_t row = 0; row < count; row += together) {
      s.in = in.at(n, z * w.stride_d - w.pad_front, (y + row) * w.stride_h - w.pad_top, -w.pad_left) +
             block.first;
      compute[together - 1](s, put, out, {n, z, y + row, 0});
    }
  }
}

} // namespace jit_passes::x86

#else

namespace jit_passes::x86 {

template <typename How>
void Convolution::runDepthwiseAvx2(const Image&, const Image&, const How&, int64_t, int64_t) const {}

} // namespace jit_passes::x86

#endif

namespace jit_passes::x86 {

template void Convolution::runDepthwiseAvx2(
    const Image& in, const Image& out, const Requantize& how, int64_t begin, int64_t end) const;
template void Convolution::runDepthwiseAvx2(
    const Image& in, const Image& out, const SumsToFloats& how, int64_t begin, int64_t end) const;

} // namespace jit_passes::x86
