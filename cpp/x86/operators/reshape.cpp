// Operators that join, split, add, remove or repeat axes.
#include "graph/places.h"
#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"

namespace jit_passes::x86 {

const Kind Kind::Flatten("flatten");
const Kind Kind::Unflatten("unflatten");
const Kind Kind::Unsqueeze("unsqueeze");
const Kind Kind::Expand("expand");

namespace {

Planned flatten(const RegionReader& reader, Node* node) {
  const std::vector<int64_t> axes{reader.integer(node, "start_dim"), reader.integer(node, "end_dim")};
  return {{Kind::Flatten, "", {}, 0, axes, {}}, {node->input(0)}};
}

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

void lowerReshape(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const Sizes &from = state.sizes[op.inputs[0]], &to = state.sizes[op.output];
  size_t input = state.primary[op.inputs[0]];
  int64_t axis = lastAxis(to);
  if (const int64_t own = state.memory(input).axis; !inOrder(orderOf(from, own))) {
    for (axis = lastAxis(to); axis >= 0; --axis) {
      if (to[axis] == from[own] && countInFront(to, axis) == countInFront(from, own)) {
        break;
      }
    }
    if (axis < 0) {
      input = state.want(op.inputs[0], lastAxis(from));
      axis = lastAxis(to);
    }
  }
  state.rename(index, input, axis);
}

// Repeats elements while a copy reads them.
void lowerExpand(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const Sizes &from = state.sizes[op.inputs[0]], &to = state.sizes[op.output];
  const int64_t more = int64_t(to.size()) - int64_t(from.size());
  Sizes axes(to.size(), -1);
  for (int64_t i = more; i < int64_t(to.size()); ++i) {
    axes[i] = from[i - more] == to[i] ? i - more : -1;
  }
  const size_t input = state.primary[op.inputs[0]];
  const int64_t own = state.memory(input).axis;
  if (from == to) {
    return state.rename(index, input, own);
  }
  state.emit(Does::Copy, index, {input}, own < 0 ? lastAxis(to) : own + more);
  state.result.steps.back().axes = axes;
}

// Attributes: first and last axis.
const RegisterOperator flatten_operator{
    {.name = "flatten",
     .attributes = {2, 2},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .from = {{"flatten", flatten}},
     .check = checkAllAxes,
     .infer = sizesOfFlatten,
     .least_axes = axesOfFlatten,
     .lower = lowerReshape}};

Planned reshape(const RegionReader& reader, Node* node) {
  Planned planned{{Kind("reshape"), "", {}, 0, {}, {}}, {node->input(0)}};
  append(planned, reader.numbers(node, "shape"));
  return planned;
}

// `whole` are the operand's sizes; `from` are the axes that change.
Sizes reshaped(const Operator& op, const Sizes& whole, const Sizes& from, Sizes sizes) {
  const auto open = std::find(sizes.begin(), sizes.end(), -1);
  const int64_t count = countOf(from);
  __int128 known = 1; // a hostile shape must not overflow
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

// Attributes: sizes. At most one is -1, which means open.
const RegisterOperator reshape_operator{
    {.name = "reshape",
     .attributes = {0, kMostMovedAxes},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .takes_shape = true,
     .from = {{"reshape", reshape}},
     .check = checkReshape,
     .infer = sizesOfReshape,
     .least_axes = asManyAxes,
     .computes = computesAll,
     .lower = lowerReshape}};

Planned unflatten(const RegionReader& reader, Node* node) {
  Planned planned{{Kind::Unflatten, "", {}, 0, {reader.integer(node, "dim")}, {}}, {node->input(0)}};
  append(planned, reader.numbers(node, "sizes"));
  return planned;
}

void checkUnflatten(const Operator& op) {
  refuseUnless(between(op.attributes[0], -8, 7), "an axis of ", op.attributes[0]);
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

// Attributes: axis, and the sizes that it is split into. At most one is -1, which means open.
const RegisterOperator unflatten_operator{
    {.name = "unflatten",
     .attributes = {2, kMostMovedAxes + 1},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .views = true,
     .from = {{"unflatten", unflatten}},
     .check = checkUnflatten,
     .infer = sizesOfUnflatten,
     .least_axes = axesOfUnflatten,
     .computes = computesParts,
     .lower = lowerReshape}};

Planned unsqueeze(const RegionReader& reader, Node* node) {
  return {{Kind::Unsqueeze, "", {}, 0, {reader.integer(node, "dim")}, {}}, {node->input(0)}};
}

Sizes sizesOfUnsqueeze(const Operands& operands) {
  Sizes sizes = operands.first();
  const int64_t rank = int64_t(sizes.size()) + 1;
  const int64_t axis = checkAxis(operands.op, operands.op.attributes[0], rank, sizes);
  sizes.insert(sizes.begin() + axis, 1);
  return sizes;
}

int64_t oneAxisMore(const Operator& /*op*/, int64_t first, int64_t /*most*/) { return first ? first + 1 : 0; }

// Attributes: the position of the new axis of size 1.
const RegisterOperator unsqueeze_operator{
    {.name = "unsqueeze",
     .attributes = {1, 1},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .from = {{"unsqueeze", unsqueeze}},
     .check = checkAllAxes,
     .infer = sizesOfUnsqueeze,
     .least_axes = oneAxisMore,
     .lower = lowerReshape}};

Planned squeeze(const RegionReader& reader, Node* node) {
  refuseUnless(operandOf(node, "dim") != nullptr, "it takes away all axes of size 1");
  const auto axes = reader.integers(node, "dim");
  refuseUnless(!axes.empty() && int64_t(axes.size()) <= kMostMovedAxes, "it has ", axes.size(), " axes");
  return {{Kind("squeeze"), "", {}, 0, axes, {}}, {node->input(0)}};
}

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

// Attributes: the axes that it removes if their size is 1.
const RegisterOperator squeeze_operator{
    {.name = "squeeze",
     .attributes = {1, kMostMovedAxes},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .from = {{"squeeze", squeeze}},
     .check = checkAllAxes,
     .infer = sizesOfSqueeze,
     .least_axes = axesOfSqueeze,
     .lower = lowerReshape}};

Planned expand(const RegionReader& reader, Node* node) {
  Planned planned{{Kind::Expand, "", {}, 0, {}, {}}, {node->input(0)}};
  append(planned, reader.numbers(node, "size"));
  const int64_t axes = planned.op.attributes.size();
  refuseUnless(between(axes, 1, kMostPlanAxes), "it gives ", axes, " axes");
  return planned;
}

void checkExpand(const Operator& op) { checkEach(op.attributes, -1, kMaxSize, "a size"); }

Sizes sizesOfExpand(const Operands& operands) {
  const Operator& op = operands.op;
  const Sizes& from = operands.first();
  Sizes sizes = op.attributes;
  const int64_t more = int64_t(sizes.size()) - int64_t(from.size());
  require(op, more >= 0, "gives ", sizes.size(), " axes, and got the shape ", from);
  require(
      op, int64_t(sizes.size()) <= kMostPlanAxes || countOf(from) == 1, "gives the sizes ", sizes,
      " of the shape ", from, "; a plan repeats numbers along ", kMostPlanAxes, " axes at most");
  for (int64_t i = 0; i < int64_t(sizes.size()); ++i) {
    const int64_t own = i < more ? 1 : from[i - more];
    sizes[i] = sizes[i] == -1 && i >= more ? own : sizes[i];
    require(
        op, sizes[i] >= 0 && (own == sizes[i] || own == 1), "gives the sizes ", sizes, " of the shape ",
        from);
  }
  return sizes;
}

// Repeats axes of size 1. Attributes: sizes; -1 keeps the operand's. If the model asks only for the shape of a
// value, one number is expanded to that shape, so the result may have no axis, or more axes than other operators
// allow.
const RegisterOperator expand_operator{
    {.name = "expand",
     .attributes = {0, kMostMovedAxes},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .takes_shape = true,
     .from = {{"expand", expand}},
     .check = checkExpand,
     .infer = sizesOfExpand,
     .least_axes = asManyAxes,
     .computes = computesAll,
     .lower = lowerExpand}};

} // namespace
} // namespace jit_passes::x86
