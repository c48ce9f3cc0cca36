// Operators that move elements along axes: roll, flip, repeat, tile.
#include "positions.h"

#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/program/checks.h"

namespace jit_passes::x86 {
namespace {

// The positions in the operand of all elements along an axis of the result.
std::vector<int64_t> positionsOf(
    const Operator& op, int64_t axis, const Sizes& from, const Sizes& to, PositionOf position) {
  const int64_t rank = to.size(), added = rank - static_cast<int64_t>(from.size());
  const int64_t size = axis < added ? 1 : from[axis - added];
  std::vector<int64_t> positions(to[axis]);
  for (int64_t at = 0; at < to[axis]; ++at) {
    positions[at] = position(op, axis, rank, at, size);
  }
  return positions;
}

bool rests(const std::vector<int64_t>& positions, int64_t size) {
  for (size_t at = 0; at < positions.size(); ++at) {
    if (positions[at] != static_cast<int64_t>(at)) {
      return false;
    }
  }
  return static_cast<int64_t>(positions.size()) == size;
}

Sizes sizesOfAxes(const Operands& operands, size_t first) {
  const auto& a = operands.op.attributes;
  for (size_t i = first; i < a.size(); ++i) {
    checkAxis(operands.op, a[i], operands.first().size(), operands.first());
  }
  return operands.first();
}

Planned roll(const RegionReader& reader, Node* node) {
  auto a = reader.integers(node, "shifts");
  const auto axes = reader.integers(node, "dims");
  refuseUnless(!axes.empty() && a.size() == axes.size(), "it rolls all elements as one row");
  a.insert(a.end(), axes.begin(), axes.end());
  return {{Kind("roll"), "", {}, 0, a, {}}, {node->input(0)}};
}

void checkRoll(const Operator& op) {
  const size_t axes = op.attributes.size() / 2;
  refuseUnless(
      op.attributes.size() % 2 == 0, "it is rolled as far as ", axes, " numbers say, along other axes");
  checkEach({op.attributes.begin(), op.attributes.begin() + axes}, -kMaxSize, kMaxSize, "a distance");
  checkAxesFrom(op, axes);
}

Sizes sizesOfRoll(const Operands& operands) {
  return sizesOfAxes(operands, operands.op.attributes.size() / 2);
}

int64_t positionOfRolled(const Operator& op, int64_t axis, int64_t rank, int64_t at, int64_t size) {
  const auto& a = op.attributes;
  for (size_t i = 0, count = a.size() / 2; i < count; ++i) {
    const int64_t shift = axisOf(a[count + i], rank) == axis ? a[i] % size : 0;
    at = (at - shift + size) % size;
  }
  return at;
}

Planned flip(const RegionReader& reader, Node* node) {
  const auto axes = reader.integers(node, "dims");
  refuseUnless(!axes.empty(), "it flips no axis");
  return {{Kind("flip"), "", {}, 0, axes, {}}, {node->input(0)}};
}

Sizes sizesOfFlip(const Operands& operands) {
  const Operator& op = operands.op;
  const int64_t rank = operands.first().size();
  const Sizes sizes = sizesOfAxes(operands, 0);
  for (int64_t axis = 0; axis < rank; ++axis) {
    const auto names =
        std::ranges::count_if(op.attributes, [&](int64_t named) { return axisOf(named, rank) == axis; });
    require(op, names <= 1, "has the axis ", axis, " twice");
  }
  return sizes;
}

int64_t positionOfFlipped(const Operator& op, int64_t axis, int64_t rank, int64_t at, int64_t size) {
  const bool flips =
      std::ranges::any_of(op.attributes, [&](int64_t flipped) { return axisOf(flipped, rank) == axis; });
  return flips ? size - 1 - at : at;
}

Planned repeat(const RegionReader& reader, Node* node) {
  Planned planned{{Kind("repeat"), "", {}, 0, {}, {}}, {node->input(0)}};
  const Numbers counts = reader.numbers(node, "repeats");
  refuseUnless(!counts.known.empty(), "it repeats no axis");
  append(planned, counts);
  return planned;
}

void checkRepeat(const Operator& op) { checkEach(op.attributes, 0, kMaxSize, "a number of times"); }

Sizes sizesOfRepeat(const Operands& operands) {
  const auto& a = operands.op.attributes;
  const Sizes& from = operands.first();
  require(operands.op, from.size() <= a.size(), "repeats ", a.size(), " axes, and got the shape ", from);
  Sizes sizes(a);
  for (size_t i = 0; i < from.size(); ++i) {
    sizes[a.size() - from.size() + i] *= from[i];
  }
  return sizes;
}

int64_t positionOfRepeated(
    const Operator& /*op*/, int64_t /*axis*/, int64_t /*rank*/, int64_t at, int64_t size) {
  return at % size;
}

// Like repeat, but fewer counts than axes belong to the last axes, and the first axes stay.
Planned tile(const RegionReader& reader, Node* node) {
  Planned planned{{Kind("tile"), "", {}, 0, {}, {}}, {node->input(0)}};
  const Numbers counts = reader.numbers(node, "dims");
  refuseUnless(!counts.known.empty(), "it repeats no axis");
  append(planned, counts);
  return planned;
}

Sizes sizesOfTile(const Operands& operands) {
  const Sizes &counts = operands.op.attributes, &from = operands.first();
  Sizes sizes(std::max(counts.size(), from.size()), 1);
  for (size_t i = 0; i < from.size(); ++i) {
    sizes[sizes.size() - from.size() + i] = from[i];
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    sizes[sizes.size() - counts.size() + i] *= counts[i];
  }
  return sizes;
}

int64_t axesOfTile(const Operator& op, int64_t first, int64_t /*most*/) {
  return std::max<int64_t>(first, op.attributes.size());
}

Planned repeatInterleave(const RegionReader& reader, Node* node) {
  const Value* counts = operandOf(node, "repeats");
  refuseUnless(
      operandOf(node, "self") != nullptr && counts->type()->kind() == c10::TypeKind::IntType,
      "it repeats elements as often as a tensor says");
  refuseUnless(reader.has(node, "dim"), "it repeats all elements as one row");
  refuseUnless(!reader.has(node, "output_size"), "it says how long its result is");
  Planned planned{
      {Kind("repeat_interleave"), "", {}, 0, {reader.integer(node, "dim")}, {}}, {inputOf(node, "self")}};
  append(planned, reader.numbers(node, "repeats"));
  return planned;
}

void checkInterleave(const Operator& op) {
  checkEach({op.attributes[0]}, -kMostPlanAxes, kMostPlanAxes - 1, "an axis");
  checkEach({op.attributes[1]}, 0, kMaxSize, "a number of times");
}

Sizes sizesOfInterleave(const Operands& operands) {
  Sizes sizes = operands.first();
  const auto& a = operands.op.attributes;
  sizes[checkAxis(operands.op, a[0], sizes.size(), sizes)] *= a[1];
  return sizes;
}

int64_t positionOfInterleaved(const Operator& op, int64_t axis, int64_t rank, int64_t at, int64_t /*size*/) {
  const bool repeats = axisOf(op.attributes[0], rank) == axis;
  return repeats ? at / std::max<int64_t>(op.attributes[1], 1) : at; // with 0 repeats there is no element
}

bool computesTimes(const Operator& /*op*/, int64_t attribute) { return attribute == 1; }

// Attributes: the shift of each rolled axis; then these axes.
const RegisterOperator roll_operator{withPositions<positionOfRolled>(
    {.name = "roll",
     .attributes = {2, 2 * kMostPlanAxes},
     .from = {{"roll", roll}},
     .check = checkRoll,
     .infer = sizesOfRoll})};
// Attributes: axes.
const RegisterOperator flip_operator{withPositions<positionOfFlipped>(
    {.name = "flip",
     .attributes = {1, kMostPlanAxes},
     .from = {{"flip", flip}},
     .check = checkAllAxes,
     .infer = sizesOfFlip})};
// Attributes: the number of repeats of each axis of the result.
const RegisterOperator repeat_operator{withPositions<positionOfRepeated>(
    {.name = "repeat",
     .attributes = {1, kMostPlanAxes},
     .from = {{"repeat", repeat}},
     .check = checkRepeat,
     .infer = sizesOfRepeat,
     .least_axes = asManyAxes,
     .computes = computesAll})};
// Attributes: the number of repeats of the last axes of the result.
const RegisterOperator tile_operator{withPositions<positionOfRepeated>(
    {.name = "tile",
     .attributes = {1, kMostPlanAxes},
     .from = {{"tile", tile}},
     .check = checkRepeat,
     .infer = sizesOfTile,
     .least_axes = axesOfTile,
     .computes = computesAll})};
// Attributes: axis, the number of repeats of each element.
const RegisterOperator repeat_interleave_operator{withPositions<positionOfInterleaved>(
    {.name = "repeat_interleave",
     .attributes = {2, 2},
     .from = {{"repeat_interleave", repeatInterleave}},
     .check = checkInterleave,
     .infer = sizesOfInterleave,
     .computes = computesTimes})};

} // namespace

int64_t restingAxis(const Operator& op, int64_t rank, PositionOf position) {
  int64_t axis = rank - 1;
  while (axis >= 0 && position(op, axis, rank, 0, kMaxSize) != 0) {
    --axis;
  }
  return axis < 0 ? rank - 1 : axis;
}

void lowerPositions(Lowering& state, size_t index, PositionOf position) {
  const Operator& op = state.program.operators[index];
  const Sizes &from = state.sizes[op.inputs[0]], &to = state.sizes[op.output];
  const int64_t rank = to.size(), added = rank - static_cast<int64_t>(from.size());
  const auto stays = [&](int64_t axis) {
    return axis >= added && rests(positionsOf(op, axis, from, to, position), from[axis - added]);
  };
  int64_t axis = state.memory(state.primary[op.inputs[0]]).axis + added;
  if (!stays(axis)) {
    for (axis = rank - 1; axis >= added && !stays(axis); --axis) {
    }
    axis = axis < added ? rank - 1 : axis;
  }
  state.emit(Does::Compute, index, {state.want(op.inputs[0], std::max<int64_t>(axis - added, -1))}, axis);
}

Part positionsKernel(const StepContext& c, PositionOf position) {
  const Memory &from = c.in(), &to = c.out();
  const int64_t added = static_cast<int64_t>(to.sizes.size()) - static_cast<int64_t>(from.sizes.size());
  const Dims dims = axisDims(to.sizes, to.axis);
  Dims dims_from = dims;
  Resample kernel;
  std::vector<int64_t>* const lists[] = {&kernel.from_n, &kernel.from_z, &kernel.from_y, &kernel.from_x};
  for (size_t i = 0; i < dims.size(); ++i) {
    Dim& dim = dims_from[i];
    *lists[i] =
        dim.axis < 0 ? std::vector<int64_t>{0} : positionsOf(c.op, dim.axis, from.sizes, to.sizes, position);
    dim.axis = std::max<int64_t>(dim.axis - added, -1);
    dim.size = dim.axis < 0 ? 1 : from.sizes[dim.axis];
  }
  if (to.axis >= 0) {
    auto channels = positionsOf(c.op, to.axis, from.sizes, to.sizes, position);
    kernel.from_channels = rests(channels, from.channels()) ? std::vector<int64_t>{} : std::move(channels);
  }
  Placed x = image(from, dims_from), y = image(to, dims);
  kernel.bytes = kernel.from_channels.empty() ? 1 : to.bytes();
  x.image.channels *= to.bytes(), y.image.channels *= to.bytes();
  return unary(std::move(kernel), x, y);
}

} // namespace jit_passes::x86
