// Permutations of axes.
#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"
#include "x86/program/orders.h"

namespace jit_passes::x86 {

const Kind Kind::Transpose("transpose");

namespace {

Planned permute(const RegionReader& reader, Node* node) {
  return {{Kind("permute"), "", {}, 0, reader.integers(node, "dims"), {}}, {node->input(0)}};
}

Sizes sizesOfTranspose(const Operands& operands) {
  const Operator& op = operands.op;
  const Sizes& from = operands.first();
  for (const int64_t axis : op.attributes) {
    checkAxis(op, axis, from.size(), from);
  }
  Sizes sizes;
  std::vector<bool> seen(from.size());
  for (const int64_t axis : permutationOf(op, from.size())) {
    require(op, !seen[axis], "has the axis ", axis, " twice");
    seen[axis] = true;
    sizes.push_back(from[axis]);
  }
  return sizes;
}

Sizes sizesOfPermute(const Operands& operands) {
  const size_t axes = operands.op.attributes.size();
  require(
      operands.op, axes == operands.first().size(), "takes ", axes, " axes, and got the shape ",
      operands.first());
  return sizesOfTranspose(operands);
}

Sizes permutedOrder(const Operator& op, const std::vector<Sizes>& orders, const std::vector<Sizes>& sizes) {
  const int64_t rank = sizes[op.output].size();
  const Sizes from = permutationOf(op, rank), &given = orders[op.inputs[0]];
  Sizes order(rank);
  for (int64_t axis = 0; axis < rank; ++axis) {
    order[std::find(given.begin(), given.end(), from[axis]) - given.begin()] = axis;
  }
  return order;
}

void lowerPermute(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const size_t input = state.primary[op.inputs[0]];
  const Sizes &from = state.sizes[op.inputs[0]], &to = state.sizes[op.output];
  const Sizes axes = permutationOf(op, from.size());
  const Sizes order = orderOf(from, state.memory(input).axis);
  for (int64_t axis = lastAxis(to); axis >= 0; --axis) {
    Sizes mapped = orderOf(to, axis);
    std::transform(mapped.begin(), mapped.end(), mapped.begin(), [&](int64_t i) { return axes[i]; });
    if (mapped == order) {
      return state.rename(index, input, axis);
    }
  }
  state.emit(Does::Copy, index, {input}, state.wanted[op.output]);
  state.result.steps.back().axes = axes;
}

// Attributes: axes.
const RegisterOperator permute_operator{
    {.name = "permute",
     .attributes = {1, kMostMovedAxes},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .permutes = true,
     .views = true,
     .from = {{"permute", permute}},
     .check = checkAllAxes,
     .infer = sizesOfPermute,
     .least_axes = asManyAxes,
     .lower = lowerPermute,
     .order = permutedOrder}};

Planned transpose(const RegionReader& reader, Node* node) {
  const std::vector<int64_t> axes{reader.integer(node, "dim0"), reader.integer(node, "dim1")};
  return {{Kind::Transpose, "", {}, 0, axes, {}}, {node->input(0)}};
}

// Attributes: two axes.
const RegisterOperator transpose_operator{
    {.name = "transpose",
     .attributes = {2, 2},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .permutes = true,
     .views = true,
     .from = {{"transpose", transpose}},
     .check = checkAllAxes,
     .infer = sizesOfTranspose,
     .lower = lowerPermute,
     .order = permutedOrder}};

} // namespace

Sizes permutationOf(const Operator& op, int64_t rank) {
  Sizes axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  if (op.kind == Kind::Transpose) {
    std::swap(axes[axisOf(op.attributes[0], rank)], axes[axisOf(op.attributes[1], rank)]);
    return axes;
  }
  std::transform(op.attributes.begin(), op.attributes.end(), axes.begin(), [&](int64_t axis) {
    return axisOf(axis, rank);
  });
  return axes;
}

} // namespace jit_passes::x86
