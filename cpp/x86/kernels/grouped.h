// Linear layers whose weights have 4 or 8 bits, and a scale and maybe a zero point for each group of neighbouring
// inputs. The input is float32, or codes from the kernels of dynamic.h; the result is float32. kernels.h has the rules
// for all kernels.
//
// Weights are packed in the order in which they are read. All forms share this order, so a file may hold them
// packed:
//
//   block of 16 outputs    totals, bias (16 float32 each), groups
//   group of inputs        scales (16 float32), steps of 32 inputs
//   step, of 4 bits        [4 octets of inputs][16 outputs][4 bytes]: inputs j and j + 4 of an octet in byte j, the
//                          first in its lower half
//   step, of 8 bits        [8 quads of inputs][16 outputs][4 bytes]
//
// Codes are two's complement. Outputs and inputs are padded with zeros. Zero points are int8, [blocks][groups][16
// outputs], apart from the rest, since most weights have none.
#pragma once

#include "dynamic.h"

namespace jit_passes::x86 {

struct GroupedShape {
  static constexpr int64_t kOutputs = 16, kInputs = 32; // outputs of a block, inputs of a step

  int64_t inputs, outputs, group, bits; // a group is a multiple of 32 inputs, or all of them

  int64_t groups() const { return inputs / group; }
  int64_t steps() const { return (group + kInputs - 1) / kInputs; } // of a group
  int64_t blocks() const { return (outputs + kOutputs - 1) / kOutputs; }
  int64_t stepBytes() const { return kOutputs * kInputs * bits / 8; }
  int64_t groupBytes() const { return kOutputs * int64_t(sizeof(float)) + steps() * stepBytes(); }
  int64_t blockBytes() const { return 2 * kOutputs * int64_t(sizeof(float)) + groups() * groupBytes(); }
  int64_t bytes() const { return blocks() * blockBytes(); }
};

// Packs codes[outputs][inputs], scales[outputs][groups] and bias[outputs] into the bytes of the shape. `zero_points`
// may be null.
void packGrouped(
    const GroupedShape& shape, const int8_t* codes, const float* scales, const int8_t* zero_points,
    const float* bias, uint8_t* packed);

// For a row x, over groups g of inputs from the first to the last, with scales s and zero points z:
//
//   a = fma(sum over g of x w, s[c][g], a),   b = fma(sum over g of x, -s[c][g] z[c][g], b)
//   codes       y[c] = fma(fma(-zero_point, total[c], a + b), scale, bias[c])
//   float32     y[c] = (a + b) + bias[c]
//   y = function(y) + residual                                          a residual has the shape of the output
//
// Without zero points there is no b. Sums of codes are exact; total[c] = sum over g of s[c][g] (sum of w - z), in
// double, rounded once. Sums of products of float32 have four parts, one for each octet of a step, each a chain of
// fused multiply-adds in order, which are added in pairs. Sums of float32 x have eight parts, which the inputs of a
// group join in turn. Items: blocks of outputs.
struct GroupedLinear {
  GroupedShape shape;
  const uint8_t* packed;
  const int8_t* zero_points = nullptr;
  FloatFunction function = {};
  const Image* residual = nullptr;
  Form form = bestForm();

  int64_t items() const { return shape.blocks(); }
  // For dense rows of codes, with one grid for each row, or one for all.
  void run(
      const uint8_t* codes, const RowGrid* grids, bool per_row, const Image& out, int64_t begin,
      int64_t end) const;
  // For float32, with dense rows.
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

} // namespace jit_passes::x86
