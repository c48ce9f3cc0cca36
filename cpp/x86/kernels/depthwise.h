// Functions for all vector forms of the depthwise convolution.
#pragma once

#include "kernels.h"

namespace jit_passes::x86 {

// A limit for the groups of four rows of a window; for AVX2, for their number times the columns of the window.
constexpr int64_t kMostFours = 64;

// Whether four rows of the image are enough for two rows of the output. If not, there are not enough registers for
// two output rows either.
inline bool sharesRows(const Window& w) {
  const bool neighbours = w.stride_h == 1 && w.dilation_h == 1 && w.kernel_d == 1;
  return neighbours && w.kernel_h > 1 && w.kernel_h + 1 <= 4;
}

// Whether AVX-512 treats a window of one row as a window of four rows: four neighbouring taps count as taps below
// each other, of four rows that each begin one tap later. A step to the next column of this window is four taps.
inline bool isFolded(const Window& w, Form form) {
  constexpr int64_t kFewestTaps = 5;
  return form >= Form::Avx512 && w.kernel_d == 1 && w.kernel_h == 1 && w.kernel_w >= kFewestTaps;
}

inline Window folded(const Window& w) {
  Window window = w;
  window.kernel_h = 4, window.kernel_w = (w.kernel_w + 3) / 4, window.dilation_w = 4 * w.dilation_w;
  return window;
}

// The number of groups of four among the window's rows in all planes, and one more row if two output rows share
// them.
inline int64_t foursOf(const Window& w) {
  return (w.kernel_d * w.kernel_h + (sharesRows(w) ? 1 : 0) + 3) / 4;
}

// The bytes from the first tap of a window to each of its rows: `offsets[0]` for a single window, `offsets[1]` for
// two windows that share rows. Rows without weights are read too: they are rows of the window, or of both windows.
inline void setRowOffsets(const Window& w, const Image& in, int64_t (&offsets)[2][4 * kMostFours]) {
  const int64_t rows = w.kernel_d * w.kernel_h;
  for (int64_t row = 0; row < 4 * foursOf(w); ++row) {
    const int64_t own = row < rows ? row : rows - 1, both = row < rows ? row : rows;
    offsets[0][row] = own / w.kernel_h * w.dilation_d * in.plane + own % w.kernel_h * w.dilation_h * in.row;
    offsets[1][row] = both * in.row;
  }
}

} // namespace jit_passes::x86
