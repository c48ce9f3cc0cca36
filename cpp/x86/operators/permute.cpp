// Axes in another order, and elements that go elsewhere along them.
#include "graph/places.h"
#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"
#include "x86/program/orders.h"
#include "x86/running/copies.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {
namespace {

Planned permute(const RegionReader& reader, Node* node) {
  return {{Kind::Permute, "", {}, 0, reader.operand(node, "dims").toIntVector(), {}}, {node->input(0)}};
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

bool isRolled(const Operator& roll, int64_t axis, int64_t rank) {
  const auto axes = roll.attributes.begin() + roll.attributes.size() / 2;
  return std::any_of(
      axes, roll.attributes.end(), [&](int64_t rolled) { return axisOf(rolled, rank) == axis; });
}

// The last axis that is not rolled, or -1.
int64_t restingAxis(const Operator& roll, int64_t rank) {
  int64_t axis = rank - 1;
  while (axis >= 0 && isRolled(roll, axis, rank)) {
    --axis;
  }
  return axis;
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

// Along axes that are not innermost.
void lowerRoll(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const int64_t own = state.memory(state.primary[op.inputs[0]]).axis, rank = state.sizes[op.output].size();
  const int64_t axis = own >= 0 && !isRolled(op, own, rank) ? own : restingAxis(op, rank);
  state.emit(Does::Compute, index, {state.want(op.inputs[0], axis)}, axis);
}

// Channels are padded as one of the other axes.
void lowerPad(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const Sizes &from = state.sizes[op.inputs[0]], &to = state.sizes[op.output];
  int64_t axis = state.memory(state.primary[op.inputs[0]]).axis;
  if (axis >= 0 && from[axis] != to[axis]) {
    for (axis = lastAxis(from); axis >= 0 && from[axis] != to[axis]; --axis) {
    }
  }
  const size_t input = state.want(op.inputs[0], axis);
  state.emit(Does::Compute, index, {input}, axis);
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
  const std::vector<int64_t> axes{reader.operand(node, "dim0").toInt(), reader.operand(node, "dim1").toInt()};
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

Planned roll(const RegionReader& reader, Node* node) {
  auto a = reader.operand(node, "shifts").toIntVector();
  const auto axes = reader.operand(node, "dims").toIntVector();
  refuseUnless(!axes.empty() && a.size() == axes.size(), "it rolls all elements as one row");
  a.insert(a.end(), axes.begin(), axes.end());
  return {{Kind::Roll, "", {}, 0, a, {}}, {node->input(0)}};
}

void checkRoll(const Operator& op) {
  const size_t axes = op.attributes.size() / 2;
  refuseUnless(
      op.attributes.size() % 2 == 0, "it is rolled as far as ", axes, " numbers say, along other axes");
  checkEach({op.attributes.begin(), op.attributes.begin() + axes}, -kMaxSize, kMaxSize, "a distance");
  checkAxesFrom(op, axes);
}

Sizes sizesOfRoll(const Operands& operands) {
  const auto& a = operands.op.attributes;
  for (size_t i = a.size() / 2; i < a.size(); ++i) {
    checkAxis(operands.op, a[i], operands.first().size(), operands.first());
  }
  return operands.first();
}

Part rollKernel(const StepContext& c) {
  const auto& a = c.op.attributes;
  const Memory& to = c.out();
  const Dims dims = axisDims(to.sizes, to.axis);
  const int64_t rank = to.sizes.size(), count = a.size() / 2;
  std::array<int64_t, 4> offset{};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t axis = axisOf(a[count + i], rank);
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      if (dims[dim].axis == axis && dims[dim].size > 0) {
        offset[dim] += a[i] % dims[dim].size;
      }
    }
  }
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    const int64_t size = std::max<int64_t>(dims[dim].size, 1);
    offset[dim] = (offset[dim] % size + size) % size;
  }
  Placed x = image(c.in(), dims), y = image(to, dims);
  x.image.channels *= to.bytes(), y.image.channels *= to.bytes();
  return {y.image.rows(), [=](const Call& call, int64_t begin, int64_t end) {
            rollRows(x.in(call), offset, y.in(call), begin, end);
          }};
}

// Attributes: how far, of each axis that is rolled; then these axes.
const RegisterOperator roll_operator{
    {.name = "roll",
     .attributes = {2, 2 * kMostAxes},
     .types = Types::Same,
     .moves = true,
     .from = {{"roll", roll}},
     .check = checkRoll,
     .infer = sizesOfRoll,
     .prefers = restingAxis,
     .lower = lowerRoll,
     .kernel = rollKernel}};

constexpr int64_t kMaxPadding = int64_t{1} << 24;

Planned pad(const RegionReader& reader, Node* node) {
  const auto mode = operandOf(node, "mode");
  refuseUnless(
      mode == nullptr || reader.operand(node, "mode").toStringRef() == "constant", "it repeats values");
  refuseUnless(
      !reader.has(node, "value") || reader.number(node, "value") == 0, "it pads with another number than 0");
  const Numbers sizes = reader.numbers(node, "pad");
  refuseUnless(
      !sizes.known.empty() && std::ranges::all_of(sizes.known, [](int64_t size) { return size >= 0; }),
      "it cuts values off");
  Planned planned{{Kind::Pad, "", {}, 0, {}, {}}, {node->input(0)}};
  append(planned, sizes);
  return planned;
}

void checkPad(const Operator& op) {
  refuseUnless(op.attributes.size() % 2 == 0, "a padding on one side only");
  checkEach(op.attributes, 0, kMaxPadding, "a padding");
}

Sizes sizesOfPad(const Operands& operands) {
  const auto& a = operands.op.attributes;
  Sizes sizes = operands.first();
  require(operands.op, a.size() <= 2 * sizes.size(), "pads more axes than there are, got the shape ", sizes);
  for (size_t i = 0; i < a.size(); ++i) {
    sizes[sizes.size() - 1 - i / 2] += a[i];
  }
  return sizes;
}

Part padKernel(const StepContext& c) {
  const auto& a = c.op.attributes;
  const Memory &from = c.in(), &to = c.out();
  const Dims dims = axisDims(to.sizes, to.axis);
  std::array<int64_t, 4> offset{};
  for (size_t i = 0; i < dims.size(); ++i) {
    const size_t at = 2 * (to.sizes.size() - 1 - dims[i].axis);
    offset[i] = dims[i].axis >= 0 && at < a.size() ? a[at] : 0;
  }
  Placed x = image(from, axisDims(from.sizes, from.axis)), y = image(to, dims);
  x.image.channels *= to.bytes(), y.image.channels *= to.bytes();
  const auto zero = static_cast<uint8_t>(to.grid->zero_point); // 0 for float32
  return {y.image.rows(), [=](const Call& call, int64_t begin, int64_t end) {
            padRows(x.in(call), offset, zero, y.in(call), begin, end);
          }};
}

// With zeros; attributes: before and behind, from the last axis on.
const RegisterOperator pad_operator{
    {.name = "pad",
     .attributes = {2, 8},
     .types = Types::Same,
     .moves = true,
     .from = {{"constant_pad_nd", pad}, {"pad", pad}},
     .check = checkPad,
     .infer = sizesOfPad,
     .computes = computesAll,
     .lower = lowerPad,
     .kernel = padKernel}};

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
