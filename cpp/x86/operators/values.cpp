// Inputs and constants, and changes between codes and float32.
#include "sizes.h"
#include "x86/lowering/arena.h"
#include "x86/lowering/general.h"
#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"
#include "x86/program/made.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {

const Kind Kind::Input("input");
const Kind Kind::Quantize("quantize");
const Kind Kind::Constant("constant");
const Kind Kind::Power("power");

namespace {

void checkInput(const Operator& op, const Program& program) {
  const int64_t input = op.attributes[0];
  refuseUnless(between(input, 0, program.inputs - 1), "input ", input, " of ", program.inputs);
}

void checkConstant(const Operator& op) {
  refuseUnless(
      op.tensors[0].dim() <= kMostPlanAxes && between(op.tensors[0].numel(), 1, kMaxSize),
      "its sizes are none");
}

void checkCodes(const Operator& op, const Program& program) {
  const Grid& grid = program.grids[op.output];
  if (!grid.is_float) {
    const auto [low, high] = op.tensors[0].aminmax();
    refuseUnless(
        low.item<int64_t>() >= grid.low && high.item<int64_t>() <= grid.high, "codes beyond [", grid.low,
        ", ", grid.high, "]");
  }
}

Sizes sizesOfConstant(const Operands& operands) { return operands.op.tensors[0].sizes().vec(); }

int64_t axesOfConstant(const Operator& op, int64_t /*first*/, int64_t /*most*/) {
  return op.tensors[0].dim();
}

void checkPower(const Operator& op) { checkNumbers(op.tensors[0], 2, "factors"); }
Sizes sizesOfPower(const Operands& /*operands*/) { return {}; }

// The elements with the channels innermost.
at::Tensor inMemoryOrder(const at::Tensor& elements, int64_t axis) {
  return (axis < 0 ? elements : elements.movedim(axis, -1)).contiguous();
}

// Copies the elements in the order of the memory.
Part constantKernel(const StepContext& c) {
  const Memory& to = c.out();
  const at::Tensor ordered = inMemoryOrder(c.op.tensors[0], to.axis);
  const int64_t count = ordered.numel();
  const at::Tensor held = at::zeros({count + kSlack}, ordered.options());
  held.narrow(0, 0, count).copy_(ordered.flatten());
  Memory from{.sizes = to.sizes, .axis = to.axis, .grid = to.grid};
  layOutDense(from);
  const Dims dims = pixelDims(to.sizes, to.axis);
  Placed y = image(to, dims);
  Image x = image(from, dims).image;
  x.data = static_cast<uint8_t*>(held.mutable_data_ptr()); // the part keeps it
  x.channels *= to.bytes(), y.image.channels *= to.bytes();
  const LookUp kernel;
  return {kernel.items(y.image), [=](const Call& call, int64_t begin, int64_t end) {
            (void)held;
            kernel.run(x, y.in(call), begin, end);
          }};
}

Part dequantizeKernel(const StepContext& c) { return dequantized(c.in(), c.out()); }

// If the only reader can decode codes itself, there is no step.
void lowerDequantize(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const auto& uses = state.uses[op.output];
  if (uses.size() == 1 && uses[0] != SIZE_MAX) {
    const Operator& reader = state.program.operators[uses[0]];
    const Sizes& sizes = state.sizes[op.output];
    const auto axis = channelAxis(reader, sizes.size());
    if (declarationOf(reader.kind).decodes && axis && between(sizes[*axis], 1, kMostDecoded)) {
      state.primary[op.output] = state.primary[op.inputs[0]];
      return;
    }
  }
  lowerInPlace(state, index);
}

// Operators that quantize the input read its tensor in place. All other operators do so if its memory order suits
// them.
void lowerInput(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const auto& uses = state.uses[op.output];
  const size_t source = op.attributes[0];
  const int64_t axis = state.wanted[op.output];
  if (std::ranges::all_of(uses, [&](size_t use) { return state.isQuantize(use); })) {
    return;
  }
  if (state.contiguous[source] && inOrder(orderOf(state.sizes[op.output], axis))) {
    state.memory(state.addMemory(op.output, axis)).home = 1 + source;
  } else {
    state.emit(Does::Take, index, {}, axis);
    state.result.steps.back().source = source;
  }
}

void lowerQuantize(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const Operator& maker = state.program.operators[state.makers[op.inputs[0]]];
  if (maker.kind == Kind::Input) {
    state.emit(Does::Enter, index, {}, state.wanted[op.output]);
    state.result.steps.back().source = maker.attributes[0];
  } else {
    const bool many =
        int64_t(state.sizes[op.output].size()) > kMostPlanAxes; // these are read in their own order
    state.emit(
        Does::Quantize, index, {state.primary[op.inputs[0]]},
        many ? state.ownAxis(op) : state.wanted[op.output]);
  }
}

// Numbers are read where they are. Codes are copied: kernels may read a little beyond them.
void lowerConstant(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const int64_t axis = state.wanted[op.output];
  if (!state.program.grids[op.output].is_float) {
    return state.emit(Does::Compute, index, {}, axis);
  }
  const size_t tensors = state.program.inputs + state.program.outputs.size();
  state.memory(state.addMemory(op.output, axis)).home = 1 + tensors + state.result.constants.size();
  state.result.constants.push_back(inMemoryOrder(op.tensors[0], axis));
}

void lowerNothing(Lowering& /*state*/, size_t /*index*/) {}

// An input of the plan, in float32. Attributes: the number of the input.
const RegisterOperator input_operator{
    {.name = "input",
     .inputs = {0, 0},
     .attributes = {1, 1},
     .types = Types::Floats,
     .most_axes = kMostMovedAxes,
     .check_values = checkInput,
     .lower = lowerInput}};
// Float32 to codes.
const RegisterOperator quantize_operator{
    {.name = "quantize",
     .types = Types::ToCodes,
     .most_axes = kMostMovedAxes,
     .lower = lowerQuantize,
     .order = orderOfFirst}};
// Codes to float32.
const RegisterOperator dequantize_operator{
    {.name = "dequantize",
     .types = Types::ToFloats,
     .most_axes = kMostMovedAxes,
     .lower = lowerDequantize,
     .kernel = dequantizeKernel,
     .order = orderOfFirst}};
// A constant: tensors[0] has its elements.
const RegisterOperator constant_operator{
    {.name = "constant",
     .inputs = {0, 0},
     .tensors = {1, 1},
     .types = Types::Stored,
     .check = checkConstant,
     .check_values = checkCodes,
     .infer = sizesOfConstant,
     .least_axes = axesOfConstant,
     .lower = lowerConstant,
     .kernel = constantKernel}};
// A power of a number, attributes[0], which the model computes from sizes. tensors[0] has a factor and the exponent.
const RegisterOperator power_operator{
    {.name = "power",
     .inputs = {0, 0},
     .attributes = {1, 1},
     .tensors = {1, 1},
     .types = Types::Real,
     .check = checkPower,
     .infer = sizesOfPower,
     .computes = computesAll,
     .lower = lowerNothing}};

} // namespace

Operator inputOperator(std::string name, int64_t number) {
  return {Kind::Input, std::move(name), {}, 0, {number}, {}};
}
Operator constantOperator(std::string name, at::Tensor elements) {
  return {Kind::Constant, std::move(name), {}, 0, {}, {std::move(elements)}};
}
Operator quantizeOperator(std::string name) { return {Kind::Quantize, std::move(name), {}, 0, {}, {}}; }
Operator dequantizeOperator() { return {Kind("dequantize"), "dequantize", {}, 0, {}, {}}; }
Operator powerOperator(std::string name, double factor, double exponent) {
  return {Kind::Power, std::move(name), {}, 0, {1}, {at::tensor({factor, exponent}, at::kDouble)}};
}

} // namespace jit_passes::x86
