// A region of int8 operators as data.
//
// A value is a tensor of float32, or of codes, x = (code - zero_point) * scale. Codes are stored as uint8: int8
// codes and their zero points are stored plus 128. Operators stand in an order in which they can be computed.
// Weights are int8 and symmetric.
#pragma once

#include "graph/jit.h"
#include "ops/rounding.h"

namespace jit_passes::x86 {

// Why a node, or an operator in a file, cannot be part of a plan. The caller adds its name.
struct JIT_PASSES_API Refusal {
  std::string reason;
};

template <typename... Message>
void refuseUnless(bool condition, const Message&... message) {
  if (!condition) {
    throw Refusal{c10::str(message...)};
  }
}

// The type of a value: codes, or float32. For float32 the numbers have no meaning, and equal `kFloat32`'s.
struct Grid {
  double scale;
  int64_t zero_point, low, high; // codes lie in [low, high], the zero point in [0, 255]
  bool is_float = false;

  int64_t bytes() const { return is_float ? sizeof(float) : 1; } // of one element
};
constexpr Grid kFloat32{1, 0, 0, 255, true};

// The part of the zero point that is added before numbers are rounded: all of it or nothing, as in PyTorch.
inline int64_t offsetOf(const Grid& grid) { return kPyTorchRoundsSteps ? 0 : grid.zero_point; }

// The code of a number; and the table from codes of one grid to codes of another.
JIT_PASSES_API int64_t codeOf(float x, const Grid& grid);
JIT_PASSES_API at::Tensor rescaled(const Grid& from, const Grid& to);

// Limits for the axes of a tensor. Operators that only move elements, or work element by element, take some more.
constexpr int64_t kMostPlanAxes = 5, kMostMovedAxes = 6;
// A limit for indices, which are float32 in a plan.
constexpr int64_t kMostIndices = kLargestWhole;
// A limit for a window's size along an axis, its stride, its dilation and its padding.
constexpr int64_t kMostWindow = int64_t{1} << 15;

struct Declaration;

// A kind of operators. Its declaration (program/declaration.h) is in a file of operators/, or in another package. Kinds
// that other rooms use have a constant, which that file defines.
class Kind {
 public:
  JIT_PASSES_API explicit Kind(const std::string& name);
  explicit Kind(const Declaration& declaration) : declaration_(&declaration) {}

  const Declaration& declaration() const { return *declaration_; }
  bool operator==(const Kind&) const = default;

  static const Kind Input, Linear, Constant, Table, Power, Pad, Convolution, Transpose, Quantize, Concat, Add,
      Unflatten, Unsqueeze, Shuffle, Recurrent, TransposedConvolution, Slice, Narrow, Multiply, MatrixProduct,
      Function, Flatten, Expand;

 private:
  const Declaration* declaration_;
};

// Positions in `attributes`. Three numbers are for depth, height and width. An operator with fewer spatial axes has
// the last ones; all further ones are for axes of size 1. Transposed convolutions remove paddings from their result,
// and the padding at the end may be negative.
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

// The quantization of a dynamic operator's input: a grid for each row or one for all; and its formula, a RangeForm
// (kernels/dynamic.h).
struct DynamicAttributes {
  enum : size_t { PerRow, Form, Count };
};

// A linear layer with weights of few bits and a scale for each group of inputs. The fields are those of GroupedShape
// (kernels/grouped.h).
struct GroupedAttributes {
  enum : size_t { Inputs, Outputs, Group, Bits, Count };
};

// A recurrent layer, whose state is quantized in each step; kernels/recurrent.h has the equations. With 1 or 2
// directions and T steps of B rows with H units, it reads
//
//   products of the input  [T, B, directions * gates * H], or [B, T, ...] if the batch is first
//   hidden, memory         [directions, B, H]; memory for an LSTM only
//
// and gives [T, B, states * directions * H], in that order of axes: hidden states, then memories. Weights are
// [directions * gates * H, H], with the bias of the state.
struct RecurrentAttributes {
  enum : size_t { Cell, Directions, BatchFirst, Form, Count }; // Form as in DynamicAttributes
};

// A part of an axis. There must be `Parts` of them, since the graph unpacks so many.
struct PartAttributes {
  enum : size_t {
    Axis,
    Number, // of this part, from 0 on
    Parts,
    How,
    // Chunks: the number asked for; Equal: the size of all but the last; Listed: the size of each; Single: 1
    Sizes,
  };
  enum : int64_t { Chunks, Equal, Listed, Single }; // Single removes the axis
};

// The axis of the channels of an affine operator.
constexpr int64_t kAffineAxis = 1;

// Positions in `tensors` of operators with weights. There are factors only with a sum.
enum : size_t { kWeight, kWeightScales, kBias, kFactors };

// Positions in `tensors` of layer norm and group norm: weight and bias are float32, one number for each channel; eps
// is one float64.
struct NormTensors {
  enum : size_t { Weight, Bias, Eps, Count };
};

// A whole number that follows from sizes. `a` and `b` are positions of earlier numbers, except for Constant, which
// is `a`; Size, the size of value `a` along axis `b`; and Sizes, all sizes of value `a`, which gives several
// attributes. Quotients and remainders are Python's, rounded towards minus infinity.
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
  // Layers with groups: packed uint8. Other layers: int8 weights, [out, in / groups, depth, height, width] or [out,
  // in]; float64 [out], the scales; float32 [out], the bias; float64 [2], the factors of a sum. A table: uint8
  // [256]. Factors: float64 [count]. A constant: uint8 or float32, in its shape. A power: float64 [2].
  std::vector<at::Tensor> tensors;
  // Attributes that the model computes from sizes: (position of the attribute, position of the number). Numbers are
  // known once the program is prepared (numbers.h). Until then `attributes` has 1 at their positions.
  std::vector<std::pair<int64_t, int64_t>> computed = {};
};

struct Program {
  int64_t inputs = 0;      // the number of float tensors that it takes
  std::vector<Grid> grids; // one for each value
  std::vector<Operator> operators;
  std::vector<int64_t> outputs; // values that it returns; codes are dequantized
  std::vector<Number> numbers = {};
};

// Facts from the kind's declaration.
JIT_PASSES_API bool isConvolution(Kind kind); // also for transposed ones
JIT_PASSES_API bool isTransposed(Kind kind);
JIT_PASSES_API bool isLinear(Kind kind);
JIT_PASSES_API bool isAffine(Kind kind);
JIT_PASSES_API bool isRecurrent(Kind kind);
JIT_PASSES_API bool isDynamic(Kind kind);
// An attribute of DynamicAttributes; these are the operator's last ones.
inline int64_t dynamicAttribute(const Operator& op, size_t which) {
  return op.attributes[op.attributes.size() - DynamicAttributes::Count + which];
}

// Whether an operator with weights adds another value before it rounds.
bool hasSum(const Operator& op);

// Whether int8 weights, with a row for each output, have so many columns that sums of products may exceed int32.
bool mayLeaveInt32(const at::Tensor& weight);

JIT_PASSES_API const char* nameOf(Kind kind);
// The kind of that name; an error if no operator has it.
JIT_PASSES_API Kind kindNamed(const std::string& name);

// Throws if a program cannot be prepared: an index out of range, an operand that is not computed yet, a tensor of
// wrong shape or dtype, a number out of range.
void check(const Program& program);
// Checks the grid of the value with number `index`.
void checkGrid(const Grid& grid, size_t index);
// Checks an operator by itself, without its operands.
void checkForm(const Operator& op);

// An operator in a file: kind and name; inputs, output, attributes, and (position, number) of each computed
// attribute; tensors.
using OperatorState =
    std::tuple<std::vector<std::string>, std::vector<std::vector<int64_t>>, std::vector<at::Tensor>>;
// A program in a file: the format and the number of inputs, (zero point, low, high, whether it is float32) of each
// value, outputs, (how, a, b) of each number; scales; operators.
using State = std::tuple<std::vector<std::vector<int64_t>>, std::vector<double>, std::vector<OperatorState>>;

std::vector<at::Tensor> copiesOf(const std::vector<at::Tensor>& tensors);
State stateOf(const Program& program);
// The program in a state, after all checks.
Program programOf(const State& state);

} // namespace jit_passes::x86
