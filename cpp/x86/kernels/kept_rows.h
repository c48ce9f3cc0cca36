// A cache of rows of a resized image, after interpolation along their pixels.
#pragma once

#include <algorithm>
#include <cstdint>

namespace jit_passes::x86 {

constexpr int64_t kKept = 1024; // floats of a row that are interpolated at a time

// Interpolated rows of the input. A row of the output reads up to four, and the next row often reads some of them
// again.
struct KeptRows {
  const uint8_t* from[4] = {};
  float values[4][kKept];

  // Finds the interpolated rows of `count` rows of the input. make(row, values) computes a missing one.
  template <typename Make>
  void find(const uint8_t* const* rows, int count, const Make& make, const float** found) {
    const uint8_t* const* const end = rows + count;
    for (int i = 0; i < count; ++i) {
      int kept = static_cast<int>(std::find(from, from + 4, rows[i]) - from);
      if (kept == 4) {
        kept = 0;
        while (std::find(rows, end, from[kept]) != end) {
          ++kept; // this one is needed
        }
        from[kept] = rows[i];
        make(rows[i], values[kept]);
      }
      found[i] = values[kept];
    }
  }
};

} // namespace jit_passes::x86
