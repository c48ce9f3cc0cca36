// Operators that only move elements, all of them.
#include "checks.h"
#include "sizes.h"
#include "x86/orders.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kMaxPadding = int64_t{1} << 24;

void checkAllAxes(const Operator& op) { checkAxesFrom(op, 0); }

Sizes sizesOfFlatten(const Operands& operands) {
  const Operator& op = operands.op;
  const Sizes& from = operands.first();
  const int64_t rank = from.size();
  require(op, rank > 0, "takes no number");
  const int64_t begin = checkAxis(op, op.attributes[0], rank, from),
                end = checkAxis(op, op.attributes[1], rank, from);
  require(op, begin <= end, "flattens the axes ", begin, " to ", end);
  Sizes sizes(from.begin(), from.begin() + begin);
  sizes.push_back(countOf(Sizes(from.begin() + begin, from.begin() + end + 1)));
  sizes.insert(sizes.end(), from.begin() + end + 1, from.end());
  return sizes;
}

int64_t axesOfFlatten(const Operator& op, int64_t first, int64_t /*most*/) {
  const auto& a = op.attributes;
  return first ? std::max<int64_t>(first - axisOf(a[1], first) + axisOf(a[0], first), 0) : 0;
}

// `whole`: the operand's sizes, of which `from` are those that change.
Sizes reshaped(const Operator& op, const Sizes& whole, const Sizes& from, Sizes sizes) {
  const auto open = std::find(sizes.begin(), sizes.end(), -1);
  const int64_t count = countOf(from);
  __int128 known = 1; // a hostile shape must not wrap around
  for (const int64_t size : sizes) {
    known = std::min<__int128>(known * (size == -1 ? 1 : size), __int128{1} << 62);
  }
  const bool fits = open == sizes.end() ? known == count : known > 0 && count % known == 0;
  require(op, fits, "got the shape ", whole, ", which is not ", op.attributes);
  if (open != sizes.end()) {
    *open = count / static_cast<int64_t>(known);
  }
  return sizes;
}

void checkReshape(const Operator& op) { checkShapeFrom(op, 0); }

Sizes sizesOfReshape(const Operands& operands) {
  return reshaped(operands.op, operands.first(), operands.first(), operands.op.attributes);
}

int64_t asManyAxes(const Operator& op, int64_t /*first*/, int64_t /*most*/) { return op.attributes.size(); }
bool computesAll(const Operator& /*op*/, int64_t /*attribute*/) { return true; }

void checkUnflatten(const Operator& op) {
  requireForm(op, between(op.attributes[0], -8, 7), "an axis of ", op.attributes[0]);
  checkShapeFrom(op, 1);
}

Sizes sizesOfUnflatten(const Operands& operands) {
  const Operator& op = operands.op;
  const Sizes& from = operands.first();
  const int64_t axis = checkAxis(op, op.attributes[0], from.size(), from);
  const Sizes parts = reshaped(op, from, {from[axis]}, {op.attributes.begin() + 1, op.attributes.end()});
  Sizes sizes(from.begin(), from.begin() + axis);
  sizes.insert(sizes.end(), parts.begin(), parts.end());
  sizes.insert(sizes.end(), from.begin() + axis + 1, from.end());
  return sizes;
}

int64_t axesOfUnflatten(const Operator& op, int64_t first, int64_t /*most*/) {
  return first ? first + int64_t(op.attributes.size()) - 2 : 0;
}

bool computesParts(const Operator& /*op*/, int64_t attribute) { return attribute > 0; }

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

Sizes sizesOfUnsqueeze(const Operands& operands) {
  Sizes sizes = operands.first();
  const int64_t rank = int64_t(sizes.size()) + 1;
  const int64_t axis = checkAxis(operands.op, operands.op.attributes[0], rank, sizes);
  sizes.insert(sizes.begin() + axis, 1);
  return sizes;
}

int64_t oneAxisMore(const Operator& /*op*/, int64_t first, int64_t /*most*/) { return first ? first + 1 : 0; }

Sizes sizesOfSqueeze(const Operands& operands) {
  const Sizes& from = operands.first();
  const int64_t rank = from.size();
  std::vector<bool> goes(rank);
  for (const int64_t attribute : operands.op.attributes) {
    const int64_t axis = checkAxis(operands.op, attribute, rank, from);
    goes[axis] = from[axis] == 1;
  }
  Sizes sizes;
  for (int64_t axis = 0; axis < rank; ++axis) {
    if (!goes[axis]) {
      sizes.push_back(from[axis]);
    }
  }
  return sizes;
}

int64_t axesOfSqueeze(const Operator& op, int64_t first, int64_t /*most*/) {
  return std::max<int64_t>(first - int64_t(op.attributes.size()), 0);
}

void checkExpand(const Operator& op) { checkEach(op, op.attributes, -1, kMaxSize, "a size"); }

Sizes sizesOfExpand(const Operands& operands) {
  const Operator& op = operands.op;
  const Sizes& from = operands.first();
  Sizes sizes = op.attributes;
  const int64_t more = int64_t(sizes.size()) - int64_t(from.size());
  require(op, more >= 0, "gives ", sizes.size(), " axes, and got the shape ", from);
  for (int64_t i = 0; i < int64_t(sizes.size()); ++i) {
    const int64_t own = i < more ? 1 : from[i - more];
    sizes[i] = sizes[i] == -1 && i >= more ? own : sizes[i];
    require(
        op, sizes[i] >= 0 && (own == sizes[i] || own == 1), "gives the sizes ", sizes, " of the shape ",
        from);
  }
  return sizes;
}

void checkRoll(const Operator& op) {
  const size_t axes = op.attributes.size() / 2;
  requireForm(
      op, op.attributes.size() % 2 == 0, "it is rolled as far as ", axes, " numbers say, along other axes");
  checkEach(op, {op.attributes.begin(), op.attributes.begin() + axes}, -kMaxSize, kMaxSize, "a distance");
  checkAxesFrom(op, axes);
}

Sizes sizesOfRoll(const Operands& operands) {
  const auto& a = operands.op.attributes;
  for (size_t i = a.size() / 2; i < a.size(); ++i) {
    checkAxis(operands.op, a[i], operands.first().size(), operands.first());
  }
  return operands.first();
}

void checkPad(const Operator& op) {
  requireForm(op, op.attributes.size() % 2 == 0, "a padding on one side only");
  checkEach(op, op.attributes, 0, kMaxPadding, "a padding");
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

const RegisterOperator flatten_operator{
    Kind::Flatten,
    {.name = "flatten",
     .inputs = {1, 1},
     .attributes = {2, 2},
     .tensors = {0, 0},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .check = checkAllAxes,
     .infer = sizesOfFlatten,
     .least_axes = axesOfFlatten}};
const RegisterOperator reshape_operator{
    Kind::Reshape,
    {.name = "reshape",
     .inputs = {1, 1},
     .attributes = {0, kMostMovedAxes},
     .tensors = {0, 0},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .takes_shape = true,
     .check = checkReshape,
     .infer = sizesOfReshape,
     .least_axes = asManyAxes,
     .computes = computesAll}};
const RegisterOperator unflatten_operator{
    Kind::Unflatten,
    {.name = "unflatten",
     .inputs = {1, 1},
     .attributes = {2, kMostMovedAxes + 1},
     .tensors = {0, 0},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .views = true,
     .check = checkUnflatten,
     .infer = sizesOfUnflatten,
     .least_axes = axesOfUnflatten,
     .computes = computesParts}};
const RegisterOperator permute_operator{
    Kind::Permute,
    {.name = "permute",
     .inputs = {1, 1},
     .attributes = {1, kMostMovedAxes},
     .tensors = {0, 0},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .views = true,
     .check = checkAllAxes,
     .infer = sizesOfPermute,
     .least_axes = asManyAxes,
     .order = permutedOrder}};
const RegisterOperator transpose_operator{
    Kind::Transpose,
    {.name = "transpose",
     .inputs = {1, 1},
     .attributes = {2, 2},
     .tensors = {0, 0},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .views = true,
     .check = checkAllAxes,
     .infer = sizesOfTranspose,
     .order = permutedOrder}};
const RegisterOperator unsqueeze_operator{
    Kind::Unsqueeze,
    {.name = "unsqueeze",
     .inputs = {1, 1},
     .attributes = {1, 1},
     .tensors = {0, 0},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .check = checkAllAxes,
     .infer = sizesOfUnsqueeze,
     .least_axes = oneAxisMore}};
const RegisterOperator squeeze_operator{
    Kind::Squeeze,
    {.name = "squeeze",
     .inputs = {1, 1},
     .attributes = {1, kMostMovedAxes},
     .tensors = {0, 0},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .check = checkAllAxes,
     .infer = sizesOfSqueeze,
     .least_axes = axesOfSqueeze}};
const RegisterOperator expand_operator{
    Kind::Expand,
    {.name = "expand",
     .inputs = {1, 1},
     .attributes = {1, kMostAxes},
     .tensors = {0, 0},
     .types = Types::Same,
     .moves = true,
     .takes_shape = true,
     .check = checkExpand,
     .infer = sizesOfExpand,
     .least_axes = asManyAxes,
     .computes = computesAll}};
const RegisterOperator roll_operator{
    Kind::Roll,
    {.name = "roll",
     .inputs = {1, 1},
     .attributes = {2, 2 * kMostAxes},
     .tensors = {0, 0},
     .types = Types::Same,
     .moves = true,
     .check = checkRoll,
     .infer = sizesOfRoll}};
const RegisterOperator pad_operator{
    Kind::Pad,
    {.name = "pad",
     .inputs = {1, 1},
     .attributes = {2, 8},
     .tensors = {0, 0},
     .types = Types::Same,
     .moves = true,
     .check = checkPad,
     .infer = sizesOfPad,
     .computes = computesAll}};

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
