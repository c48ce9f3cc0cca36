// Tiles of all forms: parts of neighbouring pixels of a row, by a block of channels.
#pragma once

#include <cstdint>

namespace jit_passes::x86 {

// Output channels that are computed at one time, and a limit for the runs of neighbouring bytes in a pixel's window.
constexpr int64_t kBlockChannels = 32, kMostRuns = 256;

// The shapes of tiles: a number of parts with a few neighbouring pixels each. AVX-512 has two halves; registers of
// 256 bits have any six pixels, with 16 channels at a time.
struct TwoHalves {
  static constexpr int64_t kParts = 2, kPixels = 7, kFewest = 4;
};
struct SixPixels {
  static constexpr int64_t kParts = 6, kPixels = 1, kFewest = 1;
};
constexpr int64_t kSixChannels = 16;

// Divides rows into `parts` of `pixels` pixels; a tile is some of the parts. The last part of a row overlaps the
// part before. Sizes from `kFewest` on keep the multipliers busy. Among them this takes the size with the fewest
// pixels computed twice: 32 are eight times 4 rather than five times 7.
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

// The most codes of a pixel that are widened for AVX2.
constexpr int64_t kMostWidened = 16512;

// The operands of one tile: the first pixel of each part, the bytes from pixel to pixel of a part, and the bytes
// from the end of each run to the beginning of the next.
template <typename Shape>
struct TileOf {
  const uint8_t* part[Shape::kParts];
  int64_t step;
  const int64_t* jumps;
  int64_t runs, quads; // and groups of four bytes in each run
};

} // namespace jit_passes::x86
