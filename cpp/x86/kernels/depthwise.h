// Common to the vector forms of the depthwise convolution.
#pragma once

#include "kernels.h"

namespace jit_passes::x86 {

// The most groups of four rows that a window has, and for AVX2 the most of these times the columns of a row of it.
constexpr int64_t kMostFours = 64;

// Whether four rows of the image are enough for two rows of the output. Where they are not, the registers do not
// suffice for two either.
inline bool sharesRows(const Window& w) {
  const bool neighbours = w.stride_h == 1 && w.dilation_h == 1 && w.kernel_d == 1;
  return neighbours && w.kernel_h > 1 && w.kernel_h + 1 <= 4;
}

// Whether a window of one row is taken for one of four rows, for AVX-512: four taps after each other as taps below each
// other, of rows that begin one tap after each other. Each column of that window is four taps further on.
inline bool isFolded(const Window& w, Form form) {
  constexpr int64_t kFewestTaps = 5;
  return form >= Form::Avx512 && w.kernel_d == 1 && w.kernel_h == 1 && w.kernel_w >= kFewestTaps;
}

inline Window folded(const Window& w) {
  Window window = w;
  window.kernel_h = 4, window.kernel_w = (w.kernel_w + 3) / 4, window.dilation_w = 4 * w.dilation_w;
  return window;
}

// Groups of four rows of the window: of those of all planes, with another one where two rows of the output share them.
inline int64_t foursOf(const Window& w) {
  return (w.kernel_d * w.kernel_h + (sharesRows(w) ? 1 : 0) + 3) / 4;
}

// Bytes from the first tap of a window to each of its rows: `offsets[0]` of a window alone, `offsets[1]` of two that
// share them. Rows without weights are read too: for one row of the output these are rows of its own window, and for
// two those of both windows.
inline void setRowOffsets(const Window& w, const Image& in, int64_t (&offsets)[2][4 * kMostFours]) {
  const int64_t rows = w.kernel_d * w.kernel_h;
  for (int64_t row = 0; row < 4 * foursOf(w); ++row) {
    const int64_t own = row < rows ? row : rows - 1, both = row < rows ? row : rows;
    offsets[0][row] = own / w.kernel_h * w.dilation_d * in.plane + own % w.kernel_h * w.dilation_h * in.row;
    offsets[1][row] = both * in.row;
  }
}

} // namespace jit_passes::x86
