// Tiles of all forms: some pixels, in parts of neighbours of a row, by a block of channels.
#pragma once

#include <cstdint>

namespace jit_passes::x86 {

// Output channels that are computed together, and the runs of neighbouring bytes that a pixel is made of.
constexpr int64_t kBlockChannels = 32, kMostRuns = 256;

// The shapes of tiles: some parts of a few neighbouring pixels. For AVX-512 two halves, and for registers of 256 bits
// any six pixels, which have 16 channels at a time.
struct TwoHalves {
  static constexpr int64_t kParts = 2, kPixels = 7, kFewest = 4;
};
struct SixPixels {
  static constexpr int64_t kParts = 6, kPixels = 1, kFewest = 1;
};
constexpr int64_t kSixChannels = 16;

// Rows of so many pixels in `parts` of `pixels`, of which some make a tile; the last part of a row overlaps the one
// before. Of the sizes that keep the multipliers busy, from `kFewest` on, one with which few pixels are computed twice:
// 32 are eight times 4, not five times 7.
template <typename Shape>
struct Division {
  Division() = default;
  explicit Division(int64_t width, int64_t rows = 1) {
    for (int64_t most = Shape::kPixels; width > 0 && most >= Shape::kFewest; --most) {
      const int64_t count = (width + most - 1) / most, each = (width + count - 1) / count;
      if (parts == 0 || count * each < parts * pixels) {
        parts = count, pixels = each;
      }
    }
    tiles = (rows * parts + Shape::kParts - 1) / Shape::kParts;
  }

  int64_t parts = 0, pixels = 0, tiles = 0;
};

// So many codes of a pixel are widened for AVX2 at most.
constexpr int64_t kMostWidened = 16512;

// The operands of one tile: the first pixel of each part, bytes from pixel to pixel of a part, and from the end of each
// run to the beginning of the next.
template <typename Shape>
struct TileOf {
  const uint8_t* part[Shape::kParts];
  int64_t step;
  const int64_t* jumps;
  int64_t runs, quads; // and groups of four bytes in each run
};

} // namespace jit_passes::x86
