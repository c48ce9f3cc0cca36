// Rows of an image that is resized, as they are once their pixels are blended.
#pragma once

#include <algorithm>
#include <cstdint>

namespace jit_passes::x86 {

constexpr int64_t kKept = 1024; // floats of a row of the input that are blended at a time

// Rows of the input as they are blended along their pixels. A row of the output reads up to four, and the next one
// often reads some of them again.
struct KeptRows {
  const uint8_t* from[4] = {};
  float values[4][kKept];

  // The kept rows of these of the input; make(row, values) makes one that is not there.
  template <typename Make>
  void find(const uint8_t* const* rows, int count, const Make& make, const float** found) {
    const uint8_t* const* const end = rows + count;
    for (int i = 0; i < count; ++i) {
      int kept = static_cast<int>(std::find(from, from + 4, rows[i]) - from);
      if (kept == 4) {
        kept = 0;
        while (std::find(rows, end, from[kept]) != end) {
          ++kept; // a row that is still read
        }
        from[kept] = rows[i];
        make(rows[i], values[kept]);
      }
      found[i] = values[kept];
    }
  }
};

} // namespace jit_passes::x86
