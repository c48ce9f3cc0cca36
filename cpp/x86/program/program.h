// A region of int8 operators as data.
//
// A value is a tensor of codes, x = (code - zero_point) * scale, stored as uint8: codes of int8 are kept with
// 128 added, zero points too. Or it is one of float32. Operators stand in an order in which they can be computed.
// Weights are int8 and symmetric.
#pragma once

#include "graph/jit.h"
#include "ops/rounding.h"

namespace jit_passes::x86 {

// Why a node, or an operator in a file, cannot be part of a plan. The caller adds its name.
struct Refusal {
  std::string reason;
};

template <typename... Message>
void refuseUnless(bool condition, const Message&... message) {
  if (!condition) {
    throw Refusal{c10::str(message...)};
  }
}

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

struct Declaration;

// A kind of operators, by its name: the file of the operators that has its declaration (operators/declaration.h) says
// the rest. The constants are for kinds that other files name.
class Kind {
 public:
  explicit Kind(const std::string& name);
  explicit Kind(const Declaration& declaration) : declaration_(&declaration) {}

  const Declaration& declaration() const { return *declaration_; }
  bool operator==(const Kind&) const = default;

  static const Kind Affine, Input, Linear, Constant, Table, Power, Pad, Convolution, Transpose, Quantize,
      Concat, Add, Unflatten, Shuffle, Recurrent, Permute, Fill, GroupedLinear, TransposedConvolution, Slice,
      Multiply, MatrixProduct, Function, Flatten, Expand;

 private:
  const Declaration* declaration_;
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

// A linear layer whose weights have few bits, and a scale for each group of inputs: see GroupedShape (grouped.h), of which
// these are the fields.
struct GroupedAttributes {
  enum : size_t { Inputs, Outputs, Group, Bits, Count };
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
  // Of layers with groups: uint8, as they are packed. With other weights: int8 [out, in / groups, depth, height, width] or [out, in]; float64 [out], the scales; float32 [out],
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

// By what their declarations say of weights.
bool isConvolution(Kind kind); // transposed ones too
bool isTransposed(Kind kind);
bool isLinear(Kind kind);
bool isAffine(Kind kind);
bool isRecurrent(Kind kind);
bool isDynamic(Kind kind);
// They are the last ones.
inline int64_t dynamicAttribute(const Operator& op, size_t which) {
  return op.attributes[op.attributes.size() - DynamicAttributes::Count + which];
}

// Whether an operator with weights adds a value before it rounds.
bool hasSum(const Operator& op);

// Whether int8 weights, a row for each result, are so many that sums of products may leave int32, whatever they are.
bool mayLeaveInt32(const at::Tensor& weight);

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
