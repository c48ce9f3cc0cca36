// Decodes codes to float32 while a kernel reads them.
#pragma once

#include "placed.h"

namespace jit_passes::x86 {

// A limit for the decoded channels of a pixel, and for the numbers that are decoded at once.
constexpr int64_t kMostDecoded = 4096;

// The operand of a float32 kernel that works over the channels of each pixel. The operand is read directly, or
// decoded some pixels at a time, which stay in the first cache.
struct Decode {
  std::optional<Dequantize> of_codes;

  JIT_PASSES_API static Decode of(const Grid& grid);

  // Calls `run(in, out, begin, end)` for all rows, or for parts of a row. There may be no `out`.
  template <typename Run, typename... Results>
  void run(const Image& in, int64_t begin, int64_t end, const Run& run, const Results&... out) const {
    if (!of_codes) {
      return run(in, out..., begin, end);
    }
    float floats[kMostDecoded];
    const int64_t channels = in.channels, most = std::max<int64_t>(kMostDecoded / channels, 1);
    for (int64_t index = begin; index < end; ++index) {
      for (int64_t x = 0; x < in.width; x += most) {
        const int64_t count = std::min(most, in.width - x);
        decode(partOf(in, index, x, count), floats);
        Image made = partOf(in, index, x, count);
        made.data = reinterpret_cast<uint8_t*>(floats), made.pixel = channels * int64_t(sizeof(float));
        run(made, partOf(out, index, x, count)..., 0, 1);
      }
    }
  }

 private:
  // Pixels of one row.
  JIT_PASSES_API void decode(const Image& codes, float* floats) const;
  // Some pixels of one row, as an image.
  static Image partOf(const Image& image, int64_t index, int64_t x, int64_t count) {
    Image part = image;
    part.data = image.data ? image.rowAt(index) + x * image.pixel : nullptr;
    part.images = part.depth = part.height = 1, part.width = count;
    return part;
  }
};

} // namespace jit_passes::x86
