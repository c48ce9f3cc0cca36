// Parts of a value along an axis, once its sizes are known.
#pragma once

#include "shapes.h"

namespace jit_passes::x86 {

struct Range {
  int64_t axis, start, length, step;
};

// The elements that Slice, Narrow or Part takes. An error where PyTorch raises one.
Range rangeOf(const Operator& op, const Sizes& sizes);

} // namespace jit_passes::x86
