// Transposed convolution as convolutions of stride 1.
#pragma once

#include "x86/program/shapes.h"

namespace jit_passes::x86 {

// The results first, first + stride, ... along one axis, and the taps first_tap, first_tap + step, ... that reach them,
// `count` of them or none: in reverse order, these are the window of a convolution of stride 1.
struct Residue {
  int64_t first, stride, first_tap, step, count, dilation, pad;

  int64_t results(int64_t size) const { return first < size ? (size - first - 1) / stride + 1 : 0; }
};

// Along depth, height and width.
struct Residues {
  std::array<Residue, 3> axes;

  Window window(int64_t groups) const;
  // Its taps, as a view of weights [out, in / groups, depth, height, width]; no elements where there are none.
  at::Tensor taps(at::Tensor weight) const;
  // These results among all, and the bytes to the first one.
  Image resultsOf(Image all) const;
  int64_t offsetIn(const Image& all) const;
};

// Of an operator of that kind, one for each of the convolutions that it falls into.
std::vector<Residues> residuesOf(const Operator& op);

} // namespace jit_passes::x86
