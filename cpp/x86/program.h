// A region of int8 operators as data.
//
// A value is a tensor of codes, x = (code - zero_point) * scale, stored as uint8: codes of int8 are kept with
// 128 added, zero points too. Or it is one of float32. Operators stand in an order in which they can be computed.
// Weights are int8 and symmetric.
#pragma once

#include "core/jit.h"
#include "ops/rounding.h"

namespace jit_passes::x86 {

// The type of a value: codes, or float32, for which the numbers mean nothing and are those of `kFloat32`.
struct Grid {
  double scale;
  int64_t zero_point, low, high; // codes lie in [low, high], the zero point in [0, 255]
  bool is_float = false;

  int64_t bytes() const { return is_float ? sizeof(float) : 1; } // of an element
};
constexpr Grid kFloat32{1, 0, 0, 255, true};

// How much of the zero point is added before numbers are rounded: all of it or nothing, as PyTorch does.
inline int64_t offsetOf(const Grid& grid) { return kPyTorchRoundsSteps ? 0 : grid.zero_point; }

// The code that quantize gives a number, and the table that makes codes of one grid into those of another.
int64_t codeOf(float x, const Grid& grid);
at::Tensor rescaled(const Grid& from, const Grid& to);

// Axes of a tensor; operators that only move elements, or go over them one by one, take some more.
constexpr int64_t kMostAxes = 5, kMostMovedAxes = 6;
// Pixels along an axis of a window, its stride, its dilation, and what an operator with a window pads.
constexpr int64_t kMostWindow = int64_t{1} << 15;

enum class Kind {
  Input,                 // float32; attributes: the number of an input of the plan
  Quantize,              // float32 to codes
  Dequantize,            // codes to float32
  Convolution,           // see ConvolutionAttributes
  TransposedConvolution, // see ConvolutionAttributes
  Linear, // over the last axis. Like Convolution, it may have a second input, and factors: then it gives
          // first * factors[0] + second * factors[1], where the first is its own result; they broadcast
  DynamicLinear,      // the same in float32: its input is quantized as the plan runs, see DynamicAttributes
  DynamicConvolution, // the same of Convolution; attributes of both, one after the other
  DynamicTransposedConvolution, // the same of TransposedConvolution
  Function, // of each number of float32 by itself; attributes: which; tensors: float64, its numbers
  Affine, // a factor and a number for each channel, of axis 1, of several values one after the other, of one in
          // float32; weights are -1, 0 or 1
  Table,    // a function of codes
  Add,      // first * factors[0] + second * factors[1], which broadcast; in float32 where one of the three is
  Multiply, // of two tensors, which broadcast; in float32 where one of the three is
  Divide,   // the first by the second, which broadcast; gives float32
  Fill, // the first, and a number where the second is not 0; both broadcast; attributes: the bits of its float32
  MaxPool,         // see PoolAttributes
  AveragePool,     // see PoolAttributes
  AdaptiveAverage, // attributes: spatial axes, sizes; -1 for that of the operand
  Mean,            // attributes: whether axes are kept, axes
  Sum,             // these go over axes as Mean does, in float32
  Length,          // the root of the sum of squares
  Largest,
  Smallest,
  Concat,    // attributes: axis
  Flatten,   // attributes: first and last axis
  Reshape,   // attributes: sizes; at most one is -1, which is open
  Unflatten, // attributes: axis, the sizes that it becomes; at most one is -1, which is open
  Permute,   // attributes: axes
  Transpose, // attributes: two axes
  Unsqueeze, // attributes: where an axis of size 1 comes in
  Squeeze,   // attributes: axes that go where they are of size 1
  Expand,  // axes of size 1 are repeated, as many as PyTorch's; attributes: sizes; -1 for that of the operand
  Roll,    // attributes: how far, of each axis that is rolled; then these axes
  Shuffle, // interleaves the parts of an axis; attributes: axis, number of parts of one size
  Slice,   // attributes: axis, start, end, step, as Python has them
  Narrow,  // attributes: axis, start, length, whether the axis goes, which is of length 1 then
  Part,    // see PartAttributes
  Pad,     // with zeros; attributes: before and behind, from the last axis on
  ResizeNearest,  // attributes: spatial axes, sizes; or factors, which are tensors[0]
  ResizeBilinear, // the same for two axes, and behind them whether corners are aligned
  MatrixProduct, // attributes: 1 where both are batches of matrices, 0 where leading axes broadcast, as Python's @
  Softmax,       // attributes: axis, and 1 where minus infinities alone give zeros
  LayerNorm, // over the last axis, see NormTensors
  RmsNorm,   // the same in float32, of which the mean is not subtracted
  GroupNorm, // over groups of the channels, of axis 1; attributes: groups; see NormTensors
  Recurrent, // from what the input gives and the states in front of the first step to all states, see RecurrentAttributes
  Constant, // its elements are tensors[0]
  Power, // a number: tensors[0] are a factor and the exponent of attributes[0], which the model computes of sizes
};

// Positions in `attributes`. Of three numbers, for depth, height and width, an operator with fewer spatial axes has
// the last ones; the others are those of an axis of size 1. Transposed convolutions cut paddings off their result,
// where that behind may be negative.
struct ConvolutionAttributes {
  enum : size_t {
    Spatial,
    Groups,
    Stride,
    PadBefore = Stride + 3,
    PadAfter = PadBefore + 3,
    Dilation = PadAfter + 3,
    Count = Dilation + 3
  };
};

struct PoolAttributes {
  enum : size_t {
    Spatial,
    Ceil,         // whether a last window may begin inside and end outside
    CountPadding, // for averages
    Divisor,      // for averages; 0: the size of the window
    Kernel,
    Stride = Kernel + 3,
    Pad = Stride + 3,
    Dilation = Pad + 3, // 1 for averages
    Count = Dilation + 3
  };
};

// How the input of a dynamic operator is quantized: a grid for each row or one for all, and whose formulas find it, a
// RangeForm (dynamic.h).
struct DynamicAttributes {
  enum : size_t { PerRow, Form, Count };
};

// A layer of a recurrent net, whose state is quantized in each step; recurrent.h has the equations. Of `directions`, 1 or
// 2, and T steps of B rows with H units, it reads
//
//   what the input gives  [T, B, directions * gates * H], or [B, T, ...] where the batch is first
//   hidden, memory        [directions, B, H]; memory for an LSTM alone
//
// and gives [T, B, states * directions * H], in that order of axes: hidden states, then memories. Weights are
// [directions * gates * H, H], with the bias of the state.
struct RecurrentAttributes {
  enum : size_t { Cell, Directions, BatchFirst, Form, Count }; // of the Form, see DynamicAttributes
};

// One of the parts that an axis falls into. They must be as many, as the graph unpacks them.
struct PartAttributes {
  enum : size_t {
    Axis,
    Number, // of this one, from 0 on
    Parts,
    How,
    Sizes, // Chunks: how many are asked for; Equal: the size of all but the last; Listed: the size of each; Single: 1
  };
  enum : int64_t { Chunks, Equal, Listed, Single }; // of Single, the axis goes
};

// The axis of the channels of an affine operator.
constexpr int64_t kAffineAxis = 1;

// Positions in `tensors` of operators with weights; factors where there is a sum.
enum : size_t { kWeight, kWeightScales, kBias, kFactors };

// Positions in `tensors` of layer norm and group norm: float32, a number for each channel; float64, one number.
struct NormTensors {
  enum : size_t { Weight, Bias, Eps, Count };
};

// A whole number that follows from sizes. `a` and `b` are numbers before it, by position, but for Constant, which is
// `a`, Size, that of value `a` along axis `b`, and Sizes, all of value `a`: attributes and no number. Quotients are rounded towards minus infinity, and remainders go
// with them, as Python's do.
struct Number {
  enum class How : int64_t {
    Constant,
    Size,
    Sum,
    Difference,
    Product,
    Quotient,
    Remainder,
    Smaller,
    Larger,
    Sizes
  };

  How how;
  int64_t a = 0, b = 0;
};

struct Operator {
  Kind kind;
  std::string name; // of the node, for messages
  std::vector<int64_t> inputs;
  int64_t output;
  std::vector<int64_t> attributes;
  // With weights: int8 [out, in / groups, depth, height, width] or [out, in]; float64 [out], the scales; float32 [out],
  // the bias; float64 [2], the factors of a sum. Of the table: uint8 [256]. Of the factors: float64 [count]. Of a
  // constant: uint8 or float32, of its shape. Of a power: float64 [2].
  std::vector<at::Tensor> tensors;
  // Attributes that the model computes of sizes, by position, and the numbers that they are. They are known when the
  // program is prepared (numbers.h); till then `attributes` has 1 in their place.
  std::vector<std::pair<int64_t, int64_t>> computed = {};
};

struct Program {
  int64_t inputs = 0;      // float tensors that it takes
  std::vector<Grid> grids; // of each value
  std::vector<Operator> operators;
  std::vector<int64_t> outputs; // values that it returns, codes dequantized
  std::vector<Number> numbers = {};
};

inline bool isTransposed(Kind kind) {
  return kind == Kind::TransposedConvolution || kind == Kind::DynamicTransposedConvolution;
}
inline bool isConvolution(Kind kind) {
  return kind == Kind::Convolution || kind == Kind::DynamicConvolution || isTransposed(kind);
}
inline bool isLinear(Kind kind) { return kind == Kind::Linear || kind == Kind::DynamicLinear; }
inline bool isDynamic(Kind kind) {
  return kind == Kind::DynamicLinear || kind == Kind::DynamicConvolution ||
         kind == Kind::DynamicTransposedConvolution;
}
// They are the last ones.
inline int64_t dynamicAttribute(const Operator& op, size_t which) {
  return op.attributes[op.attributes.size() - DynamicAttributes::Count + which];
}

// Whether an operator with weights adds a value before it rounds.
inline bool hasSum(const Operator& op) {
  return (op.kind == Kind::Convolution || op.kind == Kind::Linear) && op.inputs.size() > 1;
}

const char* nameOf(Kind kind);
// Throws where there is none of that name.
Kind kindNamed(const std::string& name);

// Throws where a program cannot be prepared as it is: an index that is none, an operand that is not computed yet, a
// tensor of another shape or dtype, a number out of range.
void check(const Program& program);
// The same for the type of a value, by its number.
void checkGrid(const Grid& grid, size_t index);
// The same for what an operator is by itself.
void checkForm(const Operator& op);

// Of an operator: kind and name; inputs, output, attributes, and (position, number) of each that is computed; tensors.
using OperatorState =
    std::tuple<std::vector<std::string>, std::vector<std::vector<int64_t>>, std::vector<at::Tensor>>;
// The format and the number of inputs, (zero point, low, high, whether it is float32) of each value, outputs, (how, a, b)
// of each number; scales; operators.
using State = std::tuple<std::vector<std::vector<int64_t>>, std::vector<double>, std::vector<OperatorState>>;

std::vector<at::Tensor> copiesOf(const std::vector<at::Tensor>& tensors);
State stateOf(const Program& program);
// Checked.
Program programOf(const State& state);

} // namespace jit_passes::x86
