// Facts about PyTorch's operators beyond their names, for passes, quantizers and reports: one table, which
// Python reads too.
#pragma once

#include <variant>

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// An operator that multiplies its input by a weight: operands are input, weight, bias, ...
struct WeightedOperator {
  int64_t spatial_dims; // 0 for linear
  bool transposed;
};

// An end of a range: none, a number, or the name of the operand that holds it.
using Bound = std::variant<std::monostate, double, const char*>;

struct Clip {
  Bound low, high;
};

// A recurrent layer, which runs over all steps of sequences, without gates or with them; or a cell, which is one step.
enum class Recurrent { None, Plain, Gated, Cell };

// Facts that follow from an operator's name alone.
struct OperatorTraits {
  std::optional<WeightedOperator> weighted;
  bool holds_weights = false; // a matrix or table of weights, in another form than `weighted`
  Recurrent recurrent = Recurrent::None;
  bool product = false;     // multiplies two tensors that the model computes
  int64_t elementwise = 0;  // tensor operands it takes at most, if it works element by element
  std::optional<Clip> clip; // limits each element of its first operand
  bool within = false;      // results are within the range of its first operand
  // The result is not negative if none of these operands is. With an empty list it is never negative.
  std::optional<std::vector<std::string>> nonnegative_if;
  bool moves_data = false; // movesData holds, depending on the operands
  bool dropout = false;
  bool asks_for_shape = false;
  bool tells_layout = false;           // its result depends on the memory layout of its first operand
  std::optional<at::ScalarType> gives; // the dtype of its result, if known and not its operands' dtype
  bool commutes = false;               // commutes holds, depending on the operands
  bool keeps_shape = false;            // its result has the shape of its first operand, for any others
  int64_t spatial = 0;                 // axes of an image that it works along: pools and resizes
};

// The operators with known traits, by qualified name.
const std::map<std::string, OperatorTraits>& operatorTable();

std::optional<WeightedOperator> weightedOperator(const Node* node);

Recurrent recurrence(c10::Symbol kind);
// Whether the node is a recurrent layer, with or without gates.
bool isRecurrent(const Node* node);

// The axis of a weight's outputs; for transposed convolutions, of the outputs within a group.
inline int64_t outputAxis(const WeightedOperator& op) { return op.transposed ? 1 : 0; }

// Batch and instance norm, which write to their running statistics where they train.
bool isNormalization(c10::Symbol kind);
constexpr size_t kRunningMean = 3, kRunningVar = 4, kTraining = 5, kEps = 7; // positions of operands

// Whether the node is some kind of dropout. Its third operand says whether it drops anything.
bool isDropout(const Node* node);

// Whether the node's result depends on the memory layout of its first operand.
bool tellsLayout(const Node* node);

// Whether the node draws random numbers. PyTorch marks every operator with dropout as random, such as recurrent
// layers, which draw no numbers in eval mode.
bool isRandom(const Node* node);

// Whether every element of the node's result is an element of its first operand, or zero. The operator then commutes
// with quantization exactly, and runs on integers as it is. This includes chunk, split and unbind, whose results are
// lists.
bool movesData(const Node* node);

// Whether the result has the shape of the first operand, which is a tensor.
bool keepsShape(const Node* node);

// Axes that a pool, or a resize of an image, works along; 0 for other operators.
int64_t spatialOf(const Node* node);

// Whether the results are within the range of the first operand.
bool staysWithin(const Node* node);

// The dtype of the results, if it is the same for any operands.
std::optional<at::ScalarType> resultDtype(const Node* node);

// Whether the type is Optional[Tensor], so that only a call tells which it is.
bool mayBeTensor(const Value* value);

// Whether each element of the node's result is a function of numbers, and of the elements at this place of its
// tensor operands. With one tensor operand it can be computed ahead of time for each code.
bool isElementwise(const Node* node);

// Whether the node's first two operands may change places. An addition with alpha cannot, nor can one of lists or
// strings.
bool commutes(const Node* node);
// Whether some node of that kind commutes.
bool mayCommute(c10::Symbol kind);

// Whether the node is an operator of the dialect that quantization has put there: it gets no stable name. The
// dialect's operators that stand for a part of the model's own convolution or batch norm are not among them.
bool isQuantization(const Node* node);

// Whether the node asks only for its first operand's shape.
bool asksForShape(const Node* node);

} // namespace jit_passes JIT_PASSES_API
