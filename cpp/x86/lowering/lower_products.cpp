#include "lowering.h"
#include "x86/kernels/attention.h"
#include "x86/kernels/floats.h"
#include "x86/program/declaration.h"

namespace jit_passes::x86 {

void Products::findViews() {
  makers_.resize(program_.grids.size());
  for (size_t index = program_.operators.size(); index-- > 0;) {
    const Operator& op = program_.operators[index];
    makers_[op.output] = index;
    const auto& uses = uses_[op.output];
    const bool viewed =
        declarationOf(op.kind).views && std::all_of(uses.begin(), uses.end(), [&](size_t use) {
          return use != SIZE_MAX && (program_.operators[use].kind == Kind::MatrixProduct || isView(use));
        });
    if (viewed && !uses.empty()) {
      views_.insert(index);
    }
  }
}

std::vector<Rearranged> Products::viewsOf(const std::vector<size_t>& chain) const {
  std::vector<Rearranged> views;
  for (const size_t index : chain) {
    const Operator& op = program_.operators[index];
    views.push_back({&op, sizes_[op.output]});
  }
  return views;
}

// Where it is if its rows are dense, or its columns, if it is that of the right; else a copy.
Products::Operand Products::operand(int64_t value, bool left) {
  std::vector<size_t> chain;
  int64_t base = value;
  for (; isView(makers_[base]); base = program_.operators[makers_[base]].inputs[0]) {
    chain.insert(chain.begin(), makers_[base]);
  }
  const auto seen = [&](size_t id, std::vector<Rearranged> views) {
    constexpr int64_t kApart = 1 << 10;
    View view{memory(id).sizes, Sizes(memory(id).sizes.size(), kApart), 0};
    const int64_t axis = memory(id).axis < 0 ? lastAxis(view.sizes) : memory(id).axis;
    if (axis >= 0) {
      view.strides[axis] = 1;
    }
    return Operand{id, views, through(views, view)};
  };
  Operand found = seen(primary_[base], viewsOf(chain));
  const auto [rows, columns] = left ? leftAxes(found.view.sizes) : rightAxes(found.view.sizes);
  if (isDense(found.view, left ? columns : rows) || (!left && isDense(found.view, columns))) {
    return found;
  }
  for (const size_t index : chain) {
    if (views_.erase(index)) {
      lowerOperator(index);
    }
  }
  return seen(want(value, lastAxis(sizes_[value])), {});
}

void Products::lowerProduct(size_t index) {
  const Operator& op = program_.operators[index];
  const int64_t products = sizes_[op.inputs[0]].back();
  TORCH_CHECK(
      program_.grids[op.inputs[1]].is_float || products <= kMostCodeProducts, op.name,
      " (matrix_product) has sums of ", products, " products, which int32 does not hold");
  const Operand left = operand(op.inputs[0], true), right = operand(op.inputs[1], false);
  bool transposed = false;
  const Image image = rightMatrices(right.view, transposed);
  const int64_t bytes = program_.grids[op.inputs[1]].is_float ? FloatProduct{transposed}.packedBytes(image)
                                                              : MatrixProduct{transposed}.packedBytes(image);
  const size_t packed = addMemory({.sizes = {bytes}, .axis = -1, .grid = nullptr});
  push(
      {.does = Does::Pack,
       .index = index,
       .inputs = {right.memory, left.memory},
       .output = packed,
       .views = {right.views}});
  const auto [rows, columns] = resultAxes(sizes_[op.inputs[0]], sizes_[op.inputs[1]]);
  const int64_t value =
      scaleResult(emitWithTable(Does::Product, index, {left.memory, right.memory, packed}, columns));
  Step& step = result_.steps.back();
  step.views = {left.views, right.views};
  step.axes = identity(sizes_[op.output].size());
  transposeResult(value);
}

// The number by which alone the result is multiplied becomes part of the product, in float32.
int64_t Products::scaleResult(int64_t value) {
  const auto& uses = uses_[value];
  Step& step = result_.steps.back();
  if (uses.size() != 1 || uses[0] == SIZE_MAX || program_.operators[uses[0]].kind != Kind::Multiply ||
      !program_.grids[value].is_float || step.function.which != FloatFunction::None) {
    return value;
  }
  const Operator& op = program_.operators[uses[0]];
  const int64_t other = op.inputs[op.inputs[0] == value];
  const Operator& number = program_.operators[makers_[other]];
  if (number.kind != Kind::Constant || !program_.grids[other].is_float || number.tensors[0].dim() != 0) {
    return value;
  }
  fused_.insert(uses[0]);
  if (uses_[other].size() == 1) {
    fused_.insert(makers_[other]);
  }
  step.function.which = FloatFunction::Scale;
  step.function.first = number.tensors[0].item<float>();
  primary_[op.output] = step.output;
  return op.output;
}

// The permutation that alone reads the result becomes part of the product.
void Products::transposeResult(int64_t value) {
  const auto& uses = uses_[value];
  const auto isTransposition = [&](const Operator& op) { return declarationOf(op.kind).permutes; };
  if (uses.size() != 1 || uses[0] == SIZE_MAX || isView(uses[0]) ||
      !isTransposition(program_.operators[uses[0]])) {
    return;
  }
  const Operator& op = program_.operators[uses[0]];
  fused_.insert(uses[0]);
  Step& step = result_.steps.back();
  const int64_t axis = memory(step.output).axis;
  step.axes = permutationOf(op, sizes_[value].size());
  const auto found = std::find(step.axes.begin(), step.axes.end(), axis);
  step.output = addMemory(op.output, axis < 0 ? -1 : found - step.axes.begin());
}

} // namespace jit_passes::x86
