// Tiles of all forms: some pixels, in parts of neighbours of a row, by a block of channels.
#pragma once

#include <cstdint>

namespace jit_passes::x86 {

// Output channels that are computed together, and the runs of neighbouring bytes that a pixel is made of.
constexpr int64_t kBlockChannels = 32, kMostRuns = 256;

// The shapes of tiles: some parts of a few neighbouring pixels. For AVX-512 two halves, and for registers of 256 bits
// any six pixels, which have 16 channels at a time.
struct TwoHalves {
  static constexpr int64_t kParts = 2, kPixels = 7;
};
struct SixPixels {
  static constexpr int64_t kParts = 6, kPixels = 1;
};
constexpr int64_t kSixChannels = 16;

// Rows of so many pixels in `parts` of `pixels`, of which some make a tile; the last part of a row overlaps the one
// before.
template <typename Shape>
struct Division {
  Division() = default;
  explicit Division(int64_t width, int64_t rows = 1)
      : parts((width + Shape::kPixels - 1) / Shape::kPixels),
        pixels(parts ? (width + parts - 1) / parts : 0),
        tiles((rows * parts + Shape::kParts - 1) / Shape::kParts) {}

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
