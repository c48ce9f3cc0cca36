// Parts of a value along an axis, once its sizes are known.
#pragma once

#include "shapes.h"

namespace jit_passes::x86 {

struct Range {
  int64_t axis, start, length, step;
};

// Whether the attributes of Slice, Narrow, Part and Shuffle are in range.
bool isRange(const Operator& op);
// The elements that Slice, Narrow or Part takes. Throws where PyTorch does.
Range rangeOf(const Operator& op, const Sizes& sizes);

} // namespace jit_passes::x86
