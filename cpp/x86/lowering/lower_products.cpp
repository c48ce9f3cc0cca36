#include "general.h"
#include "lowering.h"
#include "x86/kernels/attention.h"
#include "x86/kernels/floats.h"
#include "x86/program/declaration.h"

namespace jit_passes::x86 {
namespace {

struct Operand {
  size_t memory;
  std::vector<Rearranged> views;
  View view; // of memory with distant axes, except for the channels
};

std::vector<Rearranged> viewsOf(const Lowering& state, const std::vector<size_t>& chain) {
  std::vector<Rearranged> views;
  for (const size_t index : chain) {
    const Operator& op = state.program.operators[index];
    views.push_back({&op, state.sizes[op.output]});
  }
  return views;
}

// The operand in place if its rows are dense, or, for the right operand, its columns. Else a copy.
Operand operand(Lowering& state, int64_t value, bool left) {
  std::vector<size_t> chain;
  int64_t base = value;
  for (; state.isView(state.makers[base]); base = state.program.operators[state.makers[base]].inputs[0]) {
    chain.insert(chain.begin(), state.makers[base]);
  }
  const auto seen = [&](size_t id, std::vector<Rearranged> views) {
    constexpr int64_t kApart = 1 << 10;
    View view{state.memory(id).sizes, Sizes(state.memory(id).sizes.size(), kApart), 0};
    const int64_t axis = state.memory(id).axis < 0 ? lastAxis(view.sizes) : state.memory(id).axis;
    if (axis >= 0) {
      view.strides[axis] = 1;
    }
    return Operand{id, views, through(views, view)};
  };
  Operand found = seen(state.primary[base], viewsOf(state, chain));
  const auto [rows, columns] = left ? leftAxes(found.view.sizes) : rightAxes(found.view.sizes);
  if (isDense(found.view, left ? columns : rows) || (!left && isDense(found.view, columns))) {
    return found;
  }
  for (const size_t index : chain) {
    if (state.views.erase(index)) {
      state.lowerOperator(index);
    }
  }
  return seen(state.want(value, lastAxis(state.sizes[value])), {});
}

// If the only reader multiplies the result by a number, the product includes the number, in float32.
int64_t scaleResult(Lowering& state, int64_t value) {
  const auto& uses = state.uses[value];
  Step& step = state.result.steps.back();
  if (uses.size() != 1 || uses[0] == SIZE_MAX || state.program.operators[uses[0]].kind != Kind::Multiply ||
      !state.program.grids[value].is_float || step.function.which != FloatFunction::None) {
    return value;
  }
  const Operator& op = state.program.operators[uses[0]];
  const int64_t other = op.inputs[op.inputs[0] == value];
  const Operator& number = state.program.operators[state.makers[other]];
  if (number.kind != Kind::Constant || !state.program.grids[other].is_float || number.tensors[0].dim() != 0) {
    return value;
  }
  state.fused.insert(uses[0]);
  if (state.uses[other].size() == 1) {
    state.fused.insert(state.makers[other]);
  }
  step.function.which = FloatFunction::Scale;
  step.function.first = number.tensors[0].item<float>();
  state.primary[op.output] = step.output;
  return op.output;
}

// If the only reader permutes the result, the product writes the permuted result.
void transposeResult(Lowering& state, int64_t value) {
  const auto& uses = state.uses[value];
  const auto isTransposition = [&](const Operator& op) { return declarationOf(op.kind).permutes; };
  if (uses.size() != 1 || uses[0] == SIZE_MAX || state.isView(uses[0]) ||
      !isTransposition(state.program.operators[uses[0]])) {
    return;
  }
  const Operator& op = state.program.operators[uses[0]];
  state.fused.insert(uses[0]);
  Step& step = state.result.steps.back();
  const int64_t axis = state.memory(step.output).axis;
  step.axes = permutationOf(op, state.sizes[value].size());
  const auto found = std::find(step.axes.begin(), step.axes.end(), axis);
  step.output = state.addMemory(op.output, axis < 0 ? -1 : found - step.axes.begin());
}

bool readsInPlace(
    const FloatProduct& product, const Image& right, const Sizes& result, int64_t rows, int64_t columns) {
  int64_t matrices = 1; // sizes may be 0, so no quotient
  for (int64_t axis = 0; axis < int64_t(result.size()); ++axis) {
    matrices *= axis == rows || axis == columns ? 1 : result[axis];
  }
  return product.canReadInPlace(right, matrices, rows < 0 ? 1 : result[rows]);
}

} // namespace

void lowerProduct(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  requireInputs(op, 2);
  const int64_t products = state.sizes[op.inputs[0]].back();
  TORCH_CHECK(
      state.program.grids[op.inputs[1]].is_float || products <= kMostCodeProducts, op.name,
      " (matrix_product) has sums of ", products, " products, which int32 does not hold");
  const Operand left = operand(state, op.inputs[0], true), right = operand(state, op.inputs[1], false);
  bool transposed = false;
  const Image image = rightMatrices(right.view, transposed);
  const bool is_float = state.program.grids[op.inputs[1]].is_float;
  const auto [rows, columns] = resultAxes(state.sizes[op.inputs[0]], state.sizes[op.inputs[1]]);
  std::vector<size_t> operands{left.memory, right.memory};
  if (!is_float || !readsInPlace(FloatProduct{transposed}, image, state.sizes[op.output], rows, columns)) {
    const int64_t bytes =
        is_float ? FloatProduct{transposed}.packedBytes(image) : MatrixProduct{transposed}.packedBytes(image);
    operands.push_back(state.addMemory({.sizes = {bytes}, .axis = -1, .grid = nullptr}));
    state.push(
        {.does = Does::Pack,
         .index = index,
         .inputs = {right.memory, left.memory},
         .output = operands.back(),
         .views = {right.views}});
  }
  const int64_t value =
      scaleResult(state, state.emitWithTable(Does::Product, index, std::move(operands), columns));
  Step& step = state.result.steps.back();
  step.views = {left.views, right.views};
  step.axes = identity(state.sizes[op.output].size());
  transposeResult(state, value);
}

} // namespace jit_passes::x86
