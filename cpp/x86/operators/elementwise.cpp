// Functions of each number by itself, of each channel, and of two tensors that broadcast.
#include "checks.h"
#include "sizes.h"
#include "x86/floats.h"

namespace jit_passes::x86 {
namespace {

void checkFunction(const Operator& op) {
  const int64_t which = op.attributes[0];
  requireForm(op, between(which, 0, FloatFunction::kCount - 1), "function ", which, " is none");
  const at::Tensor& numbers = op.tensors[0];
  requireForm(
      op,
      numbers.scalar_type() == at::kDouble && numbers.dim() == 1 &&
          numbers.numel() == FloatFunction::numbersOf(which) && !at::isnan(numbers).any().item<bool>(),
      "the numbers of its function are float64, ", FloatFunction::numbersOf(which), " of them");
}

void checkTable(const Operator& op) {
  const auto& table = op.tensors[0];
  requireForm(
      op, table.scalar_type() == at::kByte && table.dim() == 1 && table.size(0) == 256,
      "a table is uint8 with 256 entries");
}

void checkAffine(const Operator& op) {
  checkWeights(op, 2);
  requireForm(op, op.tensors[kWeight].size(1) == 1, "a channel has more than one factor");
}

void checkOneInFloats(const Operator& op, const Program& program) {
  requireForm(
      op, op.inputs.size() == 1 || !program.grids[op.output].is_float, "it scales several values in float32");
}

Sizes sizesOfAffine(const Operands& operands) {
  const Operator& op = operands.op;
  const int64_t channels = op.tensors[kWeight].size(0);
  const Sizes& of = firstShaped(operands);
  require(op, of.size() > kAffineAxis, "takes ", channels, " channels, and got the shape ", of);
  const Sizes sizes = joined(operands, kAffineAxis);
  require(op, sizes[kAffineAxis] == channels, "takes ", channels, " channels, and got the shape ", sizes);
  return sizes;
}

void checkAdd(const Operator& op) { checkNumbers(op, op.tensors[0], 2, "factors"); }

void checkFill(const Operator& op) {
  requireForm(op, between(op.attributes[0], 0, UINT32_MAX), "it has no float32");
}

bool givesFloats(const Operator& /*op*/) { return false; }

const RegisterOperator function_operator{
    Kind::Function,
    {.name = "function",
     .inputs = {1, 1},
     .attributes = {1, 1},
     .tensors = {1, 1},
     .types = Types::Real,
     .most_axes = kMostMovedAxes,
     .check = checkFunction,
     .order = orderOfFirst}};
const RegisterOperator table_operator{
    Kind::Table,
    {.name = "table",
     .inputs = {1, 1},
     .attributes = {0, 0},
     .tensors = {1, 1},
     .most_axes = kMostMovedAxes,
     .check = checkTable,
     .order = orderOfFirst}};
const RegisterOperator affine_operator{
    Kind::Affine,
    {.name = "affine",
     .inputs = {1, 4096},
     .attributes = {0, 0},
     .tensors = {3, 3},
     .types = Types::Same,
     .check = checkAffine,
     .check_values = checkOneInFloats,
     .infer = sizesOfAffine}};
const RegisterOperator add_operator{
    Kind::Add,
    {.name = "add",
     .inputs = {2, 2},
     .attributes = {0, 0},
     .tensors = {1, 1},
     .types = Types::Mixed,
     .check = checkAdd,
     .infer = sizesOfBoth,
     .least_axes = mostAxesOfAny,
     .order = orderOfLargest}};
const RegisterOperator multiply_operator{
    Kind::Multiply,
    {.name = "multiply",
     .inputs = {2, 2},
     .attributes = {0, 0},
     .tensors = {0, 0},
     .types = Types::Mixed,
     .infer = sizesOfBoth,
     .least_axes = mostAxesOfAny,
     .order = orderOfLargest}};
const RegisterOperator divide_operator{
    Kind::Divide,
    {.name = "divide",
     .inputs = {2, 2},
     .attributes = {0, 0},
     .tensors = {0, 0},
     .types = Types::Mixed,
     .infer = sizesOfBoth,
     .least_axes = mostAxesOfAny,
     .gives_codes = givesFloats,
     .order = orderOfLargest}};
const RegisterOperator fill_operator{
    Kind::Fill,
    {.name = "fill",
     .inputs = {2, 2},
     .attributes = {1, 1},
     .tensors = {0, 0},
     .types = Types::Mixed,
     .check = checkFill,
     .infer = sizesOfBoth,
     .least_axes = mostAxesOfAny,
     .gives_codes = givesFloats,
     .order = orderOfLargest}};

} // namespace
} // namespace jit_passes::x86
