// Copies between orders of axes. If channels are neighbours on one side and pixels on the other, a row of pixels is
// transposed in tiles, so that both sides stay within a few cache lines. In registers, tiles are 8 x 8 elements of
// four bytes, or 16 x 16 bytes; the last tile overlaps the tile before. Channels with a step are copied pixel by
// pixel. Rows that follow one another in memory count as one row.
#include "copy_across.h"

#include <algorithm>
#include <cstring>

#include "avx2.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kSide = 16; // of a tile

// A row of pixels as a matrix: bytes from pixel to pixel, and from channel to channel.
template <typename Byte>
struct Pixels {
  Byte* data;
  int64_t pixel, channel;

  Byte* at(int64_t x, int64_t c) const { return data + x * pixel + c * channel; }
  Pixels transposed() const { return {data, channel, pixel}; }
};

using From = Pixels<const uint8_t>;
using To = Pixels<uint8_t>;

template <size_t kBytes>
void copyTile(const From& from, const To& to, int64_t x, int64_t pixels, int64_t c, int64_t channels) {
  for (int64_t j = c; j < c + channels; ++j) {
    for (int64_t i = x; i < x + pixels; ++i) {
      std::memcpy(to.at(i, j), from.at(i, j), kBytes);
    }
  }
}

template <size_t kBytes>
void copyTiles(const From& from, const To& to, int64_t pixels, int64_t first, int64_t channels) {
  for (int64_t c = first; c < channels; c += kSide) {
    for (int64_t x = 0; x < pixels; x += kSide) {
      copyTile<kBytes>(from, to, x, std::min(kSide, pixels - x), c, std::min(kSide, channels - c));
    }
  }
}

#ifdef JIT_PASSES_HAS_AVX2

// Transposes eight pixels of eight channels. Channels are neighbours in `from`, and pixels in `to`.
JIT_PASSES_AVX2_INLINE void transposeEights(const From& from, const To& to, int64_t x, int64_t c) {
  __m256 t[8], u[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(from.at(x + i, c)));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    u[i] = _mm256_unpacklo_ps(t[i], t[i + 1]), u[i + 1] = _mm256_unpackhi_ps(t[i], t[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    t[i] = _mm256_shuffle_ps(u[i], u[i + 2], 0x44), t[i + 1] = _mm256_shuffle_ps(u[i], u[i + 2], 0xEE);
    t[i + 2] = _mm256_shuffle_ps(u[i + 1], u[i + 3], 0x44);
    t[i + 3] = _mm256_shuffle_ps(u[i + 1], u[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(reinterpret_cast<float*>(to.at(x, c + i)), _mm256_permute2f128_ps(t[i], t[i + 4], 0x20));
    _mm256_storeu_ps(
        reinterpret_cast<float*>(to.at(x, c + i + 4)), _mm256_permute2f128_ps(t[i], t[i + 4], 0x31));
  }
}

JIT_PASSES_AVX2 void transposeFloats(const From& from, const To& to, int64_t pixels, int64_t channels) {
  if (pixels < 8 || channels < 8) {
    return copyTiles<4>(from, to, pixels, 0, channels);
  }
  for (int64_t c = 0; c < channels; c += 8) {
    for (int64_t x = 0; x < pixels; x += 8) {
      transposeEights(from, to, std::min(x, pixels - 8), std::min(c, channels - 8));
    }
  }
}

// Transposes sixteen pixels of sixteen channels of one byte. Four rounds of interleaved pairs turn rows into
// columns.
JIT_PASSES_AVX2_INLINE void transposeSixteens(const From& from, const To& to, int64_t x, int64_t c) {
  __m128i t[16], u[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    t[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.at(x + i, c)));
  }
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      u[2 * i] = _mm_unpacklo_epi8(t[i], t[i + 8]), u[2 * i + 1] = _mm_unpackhi_epi8(t[i], t[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      t[i] = u[i];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to.at(x, c + i)), t[i]);
  }
}

JIT_PASSES_AVX2 void transposeBytes(const From& from, const To& to, int64_t pixels, int64_t channels) {
  if (pixels < kSide || channels < kSide) {
    return copyTiles<1>(from, to, pixels, 0, channels);
  }
  for (int64_t c = 0; c < channels; c += kSide) {
    for (int64_t x = 0; x < pixels; x += kSide) {
      transposeSixteens(from, to, std::min(x, pixels - kSide), std::min(c, channels - kSide));
    }
  }
}

// Copies every second byte of `from`. A byte after the last one may be read.
JIT_PASSES_AVX2 void copySeconds(const uint8_t* from, int64_t count, uint8_t* to) {
  const __m256i lower = _mm256_set1_epi16(255);
  const __m128i lower_half = _mm256_castsi256_si128(lower);
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const auto* at = reinterpret_cast<const __m256i*>(from + 2 * i);
    const __m256i both = _mm256_packus_epi16(
        _mm256_and_si256(_mm256_loadu_si256(at), lower), _mm256_and_si256(_mm256_loadu_si256(at + 1), lower));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_permute4x64_epi64(both, 0xD8));
  }
  for (; i + 16 <= count; i += 16) {
    const auto* at = reinterpret_cast<const __m128i*>(from + 2 * i);
    const __m128i both = _mm_packus_epi16(
        _mm_and_si128(_mm_loadu_si128(at), lower_half), _mm_and_si128(_mm_loadu_si128(at + 1), lower_half));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), both);
  }
  for (; i < count; ++i) {
    to[i] = from[2 * i];
  }
}

#else
void copySeconds(const uint8_t*, int64_t, uint8_t*) {}
void transposeFloats(const From&, const To&, int64_t, int64_t) {}
void transposeBytes(const From&, const To&, int64_t, int64_t) {}
#endif

// Copies the channels of each pixel, which are `from.channel` bytes apart.
template <size_t kBytes>
void pickChannels(const From& from, const To& to, int64_t pixels, int64_t channels, bool vectors) {
  for (int64_t x = 0; x < pixels; ++x) {
    if (kBytes == 1 && vectors && from.channel == 2) {
      copySeconds(from.at(x, 0), channels, to.at(x, 0));
      continue;
    }
    for (int64_t c = 0; c < channels; ++c) {
      std::memcpy(to.data + x * to.pixel + c * int64_t(kBytes), from.at(x, c), kBytes);
    }
  }
}

// The number of rows that can be joined, since the distance from pixel to pixel is equal across their ends.
int64_t rowsTogether(const Image& image) {
  const bool rows = image.row == image.width * image.pixel;
  const bool planes = image.depth == 1 || image.plane == image.height * image.row;
  return !rows ? 1 : planes ? image.depth * image.height : image.height;
}

} // namespace

void CopyAcross::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const auto tiles = bytes == 1 ? copyTiles<1> : copyTiles<4>;
  const auto transpose = bytes == 1 ? transposeBytes : transposeFloats;
  const auto pick = bytes == 1 ? pickChannels<1> : pickChannels<4>;
  const bool vectors = form >= Form::Avx2;
  const int64_t together = std::min(rowsTogether(in), rowsTogether(out));
  for (int64_t row = begin, rows = 0; row < end; row += rows) {
    rows = std::min(end - row, together - row % together);
    const int64_t pixels = rows * out.width;
    const From from{in.rowAt(row), in.pixel, in_channel};
    const To to{out.rowAt(row), out.pixel, out_channel};
    if (in_channel == bytes && out_channel == bytes) {
      const int64_t pixel = out.channels * bytes;
      const bool dense = in.pixel == pixel && out.pixel == pixel;
      for (int64_t x = 0; x < (dense ? 1 : pixels); ++x) {
        std::memcpy(to.at(x, 0), from.at(x, 0), dense ? pixels * pixel : pixel);
      }
    } else if (vectors && in_channel == bytes && out.pixel == bytes) {
      transpose(from, to, pixels, out.channels);
    } else if (vectors && in.pixel == bytes && out_channel == bytes) {
      transpose(from.transposed(), to.transposed(), out.channels, pixels);
    } else if (out_channel == bytes && (out.channels - 1) * in_channel < in.pixel) {
      // Dense pixels count as one pixel.
      const bool dense = in.pixel == out.channels * in_channel && out.pixel == out.channels * bytes;
      pick(from, to, dense ? 1 : pixels, dense ? pixels * out.channels : out.channels, vectors);
    } else {
      tiles(from, to, pixels, 0, out.channels);
    }
  }
}

} // namespace jit_passes::x86
