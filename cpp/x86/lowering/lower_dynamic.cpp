// Layers that give float32. Most layers quantize their input at run time.
#include "general.h"

#include "lowering.h"

namespace jit_passes::x86 {
namespace {

// Bytes whose format only the steps know.
Memory bytesFor(int64_t count) { return {.sizes = {count}, .axis = -1, .grid = nullptr}; }

// The quantized operand, made once for all operators that read it with equal options: rows of codes after the grids
// of all rows; or codes, and the extents from which one grid follows.
std::vector<size_t> quantizedInput(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const Sizes& sizes = state.sizes[op.inputs[0]];
  const bool linear = isLinear(op.kind), per_row = dynamicAttribute(op, DynamicAttributes::PerRow);
  const bool as_it_is = !linear && state.memory(state.primary[op.inputs[0]]).axis >= 0;
  const size_t x = as_it_is ? state.primary[op.inputs[0]] : state.want(op.inputs[0], lastAxis(sizes));
  const int64_t axis = neededAxis(op, sizes.size());
  const int64_t form = dynamicAttribute(op, DynamicAttributes::Form);
  const auto [found, added] =
      state.quantized.emplace(std::tuple(x, linear, axis, per_row, form), std::vector<size_t>{});
  if (added) {
    std::vector<size_t> inputs{x};
    if (!per_row) {
      const int64_t lines = linear ? countOf(sizes) / sizes.back() : linesOf(pixelDims(sizes, axis));
      inputs.push_back(state.addMemory(bytesFor(bytesOfExtents(lines))));
      state.push({.does = Does::Measure, .index = index, .inputs = {x}, .output = inputs[1]});
    }
    const int64_t codes = countOf(sizes);
    const size_t output = state.addMemory(
        linear ? bytesFor(codes + (per_row ? bytesOfGrids(codes / sizes.back()) : 0))
               : Memory{.sizes = sizes, .axis = axis, .grid = nullptr});
    found->second = per_row ? std::vector{output} : std::vector{output, inputs[1]};
    const Does does = linear ? Does::QuantizeRows : Does::QuantizeImage;
    state.push({.does = does, .index = index, .inputs = inputs, .output = output});
  }
  return found->second;
}

// Lets the last step add a value that is computed already, if a sum of both is the only reader of the step's result.
// Returns the value that the step gives.
int64_t addSum(Lowering& state, size_t index, int64_t value) {
  const auto& uses = state.uses[value];
  if (uses.size() != 1 || uses[0] == SIZE_MAX || state.program.operators[uses[0]].kind != Kind::Add) {
    return value;
  }
  Step& step = state.result.steps.back();
  const Operator& sum = state.program.operators[uses[0]];
  const int64_t other = sum.inputs[sum.inputs[0] == value];
  if (state.makers[other] >= index || state.isView(state.makers[other]) ||
      !state.program.grids[other].is_float ||
      state.memory(state.primary[other]).axis != state.memory(step.output).axis ||
      state.sizes[other] != state.sizes[value] || !sum.tensors[0].eq(1).all().item<bool>()) {
    return value;
  }
  state.fused.insert(uses[0]);
  step.inputs.push_back(state.primary[other]);
  state.primary[sum.output] = step.output;
  return sum.output;
}

} // namespace

void lowerFloatLayer(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const int64_t axis = neededAxis(op, state.sizes[op.output].size());
  const Does does = declarationOf(op.kind).step;
  const auto inputs = isDynamic(op.kind) ? quantizedInput(state, index) : state.wantAll(op);
  const int64_t value = addSum(state, index, state.emitWithTable(does, index, inputs, axis));
  Step& step = state.result.steps.back();
  step.packed =
      isDynamic(op.kind) && does == Does::ToFloats ? state.weights.packed(state.program, op, true) : nullptr;
  step.adds_in_place = does == Does::ToFloats && !state.emitQuantize(value);
}

int64_t bytesOfGrids(int64_t rows) {
  constexpr int64_t kLine = 64;
  return (rows * int64_t(sizeof(RowGrid)) + kLine - 1) / kLine * kLine;
}

} // namespace jit_passes::x86
