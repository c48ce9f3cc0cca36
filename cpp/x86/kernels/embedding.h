// Rows of a table of codes.
#pragma once

#include "kernels.h"

namespace jit_passes::x86 {

// A table of codes from 0 on, with a scale and a zero point for each row, or for each group of a row's columns. A
// code of 8 bits has a byte. With 4 bits and K columns, an even number, the lower half of byte k is column k of the
// row, and the upper half column K / 2 + k.
struct CodedRows {
  int64_t rows, columns, groups, bits;
  const uint8_t* codes;
  const float *scales, *zero_points; // [rows, groups]; without zero points, all are 2^(bits - 1)

  int64_t rowBytes() const { return columns * bits / 8; }
  // y[k] = (code[k] - zero_point) * scale, in float32, like PyTorch's operators.
  void decode(int64_t row, float* out) const;
};

} // namespace jit_passes::x86
