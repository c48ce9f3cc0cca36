// Axes in another order, and elements that go elsewhere along them.
#include "graph/places.h"
#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"
#include "x86/program/orders.h"
#include "x86/running/moves.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {
namespace {

Planned permute(const Reader& reader, Node* node) {
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
     .lower = &Lowering::lowerPermute,
     .order = permutedOrder}};

Planned transpose(const Reader& reader, Node* node) {
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
     .lower = &Lowering::lowerPermute,
     .order = permutedOrder}};

Planned roll(const Reader& reader, Node* node) {
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
     .lower = &Lowering::lowerRoll,
     .kernel = rollKernel}};

constexpr int64_t kMaxPadding = int64_t{1} << 24;

Planned pad(const Reader& reader, Node* node) {
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
     .lower = &Lowering::lowerPad,
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
