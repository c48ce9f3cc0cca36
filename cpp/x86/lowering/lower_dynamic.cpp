// Operators that quantize their input as the plan runs.
#include "lowering.h"

namespace jit_passes::x86 {
namespace {

// Which only one step understands.
Memory bytesFor(int64_t count) { return {.sizes = {count}, .axis = -1, .grid = nullptr}; }

} // namespace

// Its operand, quantized once for all that read it alike: rows of codes behind the grid of each; or codes, and what the
// grid of all follows from.
std::vector<size_t> Dynamics::quantized(size_t index) {
  const Operator& op = program_.operators[index];
  const Sizes& sizes = sizes_[op.inputs[0]];
  const bool linear = isLinear(op.kind), per_row = dynamicAttribute(op, DynamicAttributes::PerRow);
  const bool as_it_is = !linear && memory(primary_[op.inputs[0]]).axis >= 0;
  const size_t x = as_it_is ? primary_[op.inputs[0]] : want(op.inputs[0], lastAxis(sizes));
  const int64_t axis = *channelAxis(op, sizes.size());
  const int64_t form = dynamicAttribute(op, DynamicAttributes::Form);
  const auto [found, added] =
      quantized_.emplace(std::tuple(x, linear, axis, per_row, form), std::vector<size_t>{});
  if (added) {
    std::vector<size_t> inputs{x};
    if (!per_row) {
      const int64_t lines = linear ? countOf(sizes) / sizes.back() : linesOf(pixelDims(sizes, axis));
      inputs.push_back(addMemory(bytesFor(bytesOfExtents(lines))));
      push({.does = Does::Measure, .index = index, .inputs = {x}, .output = inputs[1]});
    }
    const int64_t codes = countOf(sizes);
    const size_t output = addMemory(
        linear ? bytesFor(codes + (per_row ? bytesOfGrids(codes / sizes.back()) : 0))
               : Memory{.sizes = sizes, .axis = axis, .grid = nullptr});
    found->second = per_row ? std::vector{output} : std::vector{output, inputs[1]};
    const Does does = linear ? Does::QuantizeRows : Does::QuantizeImage;
    push({.does = does, .index = index, .inputs = inputs, .output = output});
  }
  return found->second;
}

// With a function and a sum that alone read the result, if the other operand is there already.
void Dynamics::lowerDynamic(size_t index) {
  const Operator& op = program_.operators[index];
  const int64_t axis = *channelAxis(op, sizes_[op.output].size());
  const int64_t value = emitWithTable(Does::ToFloats, index, quantized(index), axis);
  Step& step = result_.steps.back();
  step.packed = weights_.packed(program_, op, true);
  const auto& uses = uses_[value];
  if (uses.size() != 1 || uses[0] == SIZE_MAX || program_.operators[uses[0]].kind != Kind::Add) {
    return;
  }
  const Operator& sum = program_.operators[uses[0]];
  const int64_t other = sum.inputs[sum.inputs[0] == value];
  if (makers_[other] < index && !isView(makers_[other]) && program_.grids[other].is_float &&
      memory(primary_[other]).axis == axis && sizes_[other] == sizes_[value] &&
      sum.tensors[0].eq(1).all().item<bool>()) {
    fused_.insert(uses[0]);
    step.inputs.push_back(primary_[other]);
    primary_[sum.output] = step.output;
  }
}

int64_t bytesOfGrids(int64_t rows) {
  constexpr int64_t kLine = 64;
  return (rows * int64_t(sizeof(RowGrid)) + kLine - 1) / kLine * kLine;
}

} // namespace jit_passes::x86
