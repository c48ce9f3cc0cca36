// Operands of matrix products where they are: what rearranges them only says how far apart their elements lie.
#pragma once

#include "x86/kernels/kernels.h"
#include "x86/program/parts.h"

namespace jit_passes::x86 {

struct View {
  Sizes sizes, strides; // strides in bytes
  int64_t offset = 0;
};

// An operator that gives elements of its operand at even distances, and the sizes of its result.
struct Rearranged {
  const Operator* op;
  Sizes sizes;
};
// The view that operators make of another one; each reads the result of the one before.
View through(const std::vector<Rearranged>& operators, View view);

// Axes of the operands; -1 where a vector has none.
struct MatrixAxes {
  int64_t rows, columns;
};
MatrixAxes leftAxes(const Sizes& sizes);
MatrixAxes rightAxes(const Sizes& sizes);
MatrixAxes resultAxes(const Sizes& left, const Sizes& right);

// Whether elements along an axis are neighbours; so are those of an axis that there is not.
bool isDense(const View& view, int64_t axis);
// A batch of matrices: pixels along one axis, channels along another one that is dense.
Image matrices(const View& view, int64_t pixels, int64_t channels);
// The right operand: transposed where its columns are not dense.
Image rightMatrices(const View& view, bool& transposed);

} // namespace jit_passes::x86
