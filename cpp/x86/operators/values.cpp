// Where values begin, and change their type.
#include "checks.h"
#include "sizes.h"
#include "x86/lowering.h"

namespace jit_passes::x86 {
namespace {

void checkInput(const Operator& op, const Program& program) {
  const int64_t input = op.attributes[0];
  requireForm(op, between(input, 0, program.inputs - 1), "input ", input, " of ", program.inputs);
}

void checkConstant(const Operator& op) {
  requireForm(
      op, op.tensors[0].dim() <= kMostAxes && between(op.tensors[0].numel(), 1, kMaxSize),
      "its sizes are none");
}

void checkCodes(const Operator& op, const Program& program) {
  const Grid& grid = program.grids[op.output];
  if (!grid.is_float) {
    const auto [low, high] = op.tensors[0].aminmax();
    requireForm(
        op, low.item<int64_t>() >= grid.low && high.item<int64_t>() <= grid.high, "codes beyond [", grid.low,
        ", ", grid.high, "]");
  }
}

Sizes sizesOfConstant(const Operands& operands) { return operands.op.tensors[0].sizes().vec(); }

int64_t axesOfConstant(const Operator& op, int64_t /*first*/, int64_t /*most*/) {
  return op.tensors[0].dim();
}

void checkPower(const Operator& op) { checkNumbers(op, op.tensors[0], 2, "factors"); }
Sizes sizesOfPower(const Operands& /*operands*/) { return {}; }

const RegisterOperator input_operator{
    Kind::Input,
    {.name = "input",
     .inputs = {0, 0},
     .attributes = {1, 1},
     .types = Types::Floats,
     .most_axes = kMostMovedAxes,
     .check_values = checkInput,
     .lower = &Lowering::lowerInput}};
const RegisterOperator quantize_operator{
    Kind::Quantize,
    {.name = "quantize",
     .types = Types::ToCodes,
     .most_axes = kMostMovedAxes,
     .lower = &Lowering::lowerQuantize,
     .order = orderOfFirst}};
const RegisterOperator dequantize_operator{
    Kind::Dequantize,
    {.name = "dequantize",
     .types = Types::ToFloats,
     .most_axes = kMostMovedAxes,
     .lower = &Lowering::lowerInPlace,
     .step = Does::Dequantize,
     .order = orderOfFirst}};
const RegisterOperator constant_operator{
    Kind::Constant,
    {.name = "constant",
     .inputs = {0, 0},
     .tensors = {1, 1},
     .types = Types::Stored,
     .check = checkConstant,
     .check_values = checkCodes,
     .infer = sizesOfConstant,
     .least_axes = axesOfConstant,
     .lower = &Lowering::lowerConstant}};
const RegisterOperator power_operator{
    Kind::Power,
    {.name = "power",
     .inputs = {0, 0},
     .attributes = {1, 1},
     .tensors = {1, 1},
     .types = Types::Real,
     .check = checkPower,
     .infer = sizesOfPower,
     .computes = computesAll,
     .lower = &Lowering::lowerNothing}};

} // namespace
} // namespace jit_passes::x86
