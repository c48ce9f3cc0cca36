// Views of matrix products' operands: operators that rearrange an operand only change its sizes and strides.
#pragma once

#include "x86/kernels/kernels.h"
#include "x86/program/parts.h"

namespace jit_passes::x86 {

struct View {
  Sizes sizes, strides; // strides in bytes
  int64_t offset = 0;
};

// An operator whose result is a strided view of its operand, and the sizes of the result.
struct Rearranged {
  const Operator* op;
  Sizes sizes;
};
// The view after these operators; each operator reads the result of the one before.
View through(const std::vector<Rearranged>& operators, View view);

// The axes of the operands; -1 for the axis that a vector lacks.
struct MatrixAxes {
  int64_t rows, columns;
};
MatrixAxes leftAxes(const Sizes& sizes);
MatrixAxes rightAxes(const Sizes& sizes);
MatrixAxes resultAxes(const Sizes& left, const Sizes& right);

// Whether elements along an axis are neighbours. True for an axis that does not exist.
bool isDense(const View& view, int64_t axis);
// A batch of matrices as an image: pixels along one axis, channels along another, dense axis.
Image matrices(const View& view, int64_t pixels, int64_t channels);
// The right operand as an image. Sets `transposed` if its columns are not dense.
Image rightMatrices(const View& view, bool& transposed);

} // namespace jit_passes::x86
