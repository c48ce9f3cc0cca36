// A transposed convolution as several convolutions of stride 1.
#pragma once

#include "x86/program/shapes.h"

namespace jit_passes::x86 {

// The results first, first + stride, ... along one axis, and the `count` taps first_tap, first_tap + step, ... that
// reach them, or none. In reverse order, these taps are the window of a convolution of stride 1.
struct Residue {
  int64_t first, stride, first_tap, step, count, dilation, pad;

  int64_t results(int64_t size) const { return first < size ? (size - first - 1) / stride + 1 : 0; }
};

// Residues along depth, height and width.
struct Residues {
  std::array<Residue, 3> axes;

  Window window(int64_t groups) const;
  // The taps as a view of weights [out, in / groups, depth, height, width]. No elements if there are no taps.
  at::Tensor taps(at::Tensor weight) const;
  // The image of these results among all.
  Image resultsOf(Image all) const;
  int64_t offsetIn(const Image& all) const;
};

// The residues of a transposed convolution, one for each convolution of stride 1.
std::vector<Residues> residuesOf(const Operator& op);

} // namespace jit_passes::x86
