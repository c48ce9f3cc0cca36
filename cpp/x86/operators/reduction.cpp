// Reductions over axes.
#include "graph/places.h"
#include "windows.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"

namespace jit_passes::x86 {
namespace {

constexpr const char* kNames[] = {"sum", "mean", "length", "largest", "smallest"}; // by ReduceFloats::Which

void checkReduction(const Operator& op) {
  refuseUnless(between(op.attributes[0], 0, 1), "whether axes are kept is 0 or 1");
  checkAxesFrom(op, 1);
}

Sizes sizesOfReduced(const Operands& operands) {
  const Operator& op = operands.op;
  const Sizes& first = operands.first();
  const int64_t rank = first.size();
  for (size_t i = 1; i < op.attributes.size(); ++i) {
    checkAxis(op, op.attributes[i], rank, first);
  }
  Sizes sizes;
  for (int64_t axis = 0; axis < rank; ++axis) {
    const bool reduced = isReduced(op, axis, rank);
    if (!reduced || op.attributes[0]) {
      sizes.push_back(reduced ? 1 : first[axis]);
    }
  }
  require(op, countOf(first) > 0 || countOf(sizes) == 0, "goes over no values of the shape ", first);
  return sizes;
}

int64_t axesOfReduced(const Operator& op, int64_t first, int64_t /*most*/) {
  const int64_t reduced = int64_t(op.attributes.size()) - 1;
  return op.attributes[0] ? first : std::max<int64_t>(first - reduced, 0);
}

// The result with the axes of the operand: size 1 along reduced axes.
Placed resultOf(const StepContext& c, Dims dims) {
  const Memory& to = c.out();
  const int64_t rank = c.in().sizes.size();
  Sizes strides(rank, 0);
  for (int64_t axis = 0, kept = 0; axis < rank; ++axis) {
    if (!isReduced(c.op, axis, rank)) {
      strides[axis] = to.strides[kept];
    }
    kept += c.op.attributes[0] || !isReduced(c.op, axis, rank);
  }
  for (Dim& dim : dims) {
    dim.size = dim.axis >= 0 && isReduced(c.op, dim.axis, rank) ? 1 : dim.size;
  }
  return {imageOf(dims, strides, to.channels(), to.bytes()), to.offset, to.home};
}

Part reduceKernel(const StepContext& c) {
  const Dims dims = axisDims(c.in().sizes, c.in().axis);
  return unary(ReduceFloats{*declarationOf(c.op.kind).reduces}, image(c.in(), dims), resultOf(c, dims));
}

Part meanKernel(const StepContext& c) {
  if (c.in().grid->is_float) {
    return reduceKernel(c);
  }
  const Dims dims = axisDims(c.in().sizes, c.in().axis);
  const Placed x = image(c.in(), dims), y = resultOf(c, dims);
  return averageOver(c, adaptiveWindows(x.image, y.image), 0, x, y);
}

// The axis of the result for an axis of the operand; -1 if it is gone.
int64_t axisBehind(const Operator& op, int64_t axis, int64_t rank) {
  if (op.attributes[0] || axis < 0) {
    return axis;
  }
  int64_t in_front = 0;
  for (int64_t i = 0; i < axis; ++i) {
    in_front += isReduced(op, i, rank);
  }
  return isReduced(op, axis, rank) ? -1 : axis - in_front;
}

// For float32, whose kernel treats channels like all other axes.
void lowerReduction(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const int64_t rank = state.sizes[op.inputs[0]].size(), own = state.ownAxis(op),
                axis = own < 0 ? rank - 1 : own;
  state.emit(Does::Compute, index, {state.want(op.inputs[0], axis)}, axisBehind(op, axis, rank));
}

void lowerMean(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  if (state.memory(state.primary[op.inputs[0]]).grid->is_float) {
    return lowerReduction(state, index);
  }
  const int64_t rank = state.sizes[op.inputs[0]].size();
  int64_t axis = state.memory(state.primary[op.inputs[0]]).axis;
  if (axis >= 0 && isReduced(op, axis, rank)) {
    for (axis = rank - 1; axis >= 0 && isReduced(op, axis, rank); --axis) {
    }
  }
  const size_t input = state.want(op.inputs[0], axis);
  const int64_t others = rank - (axis >= 0);
  TORCH_CHECK(
      others <= 3 || (others == 4 && !isReduced(op, axis == 0 ? 1 : 0, rank)), op.name,
      " (mean) goes over the first of ", rank, " axes, which a plan cannot do");
  state.emit(Does::Compute, index, {input}, axisBehind(op, axis, rank));
}

Declaration inFloats(ReduceFloats::Which reduces, std::vector<From> from) {
  return {
      .name = kNames[reduces],
      .attributes = {2, kMostPlanAxes + 1},
      .types = Types::Real,
      .reduces = reduces,
      .from = std::move(from),
      .check = checkReduction,
      .infer = sizesOfReduced,
      .least_axes = axesOfReduced,
      .lower = lowerReduction,
      .kernel = reduceKernel};
}

template <ReduceFloats::Which which>
Planned reduction(const RegionReader& reader, Node* node) {
  refuseUnless(operandOf(node, "dim") != nullptr && reader.has(node, "dim"), "it goes over all axes");
  reader.refuseCast(node);
  refuseUnless(
      which != ReduceFloats::Length || numberOf(reader, node->input(1)) == 2.0,
      "its norm is not the norm of order 2");
  const auto axes = reader.integers(node, "dim");
  refuseUnless(!axes.empty(), "it goes over all axes");
  std::vector<int64_t> a{reader.flag(node, "keepdim")};
  a.insert(a.end(), axes.begin(), axes.end());
  return {{Kind(kNames[which]), "", {}, 0, a, {}}, {node->input(0)}};
}

// Attributes: whether axes are kept, axes.
const RegisterOperator mean_operator{
    {.name = "mean",
     .attributes = {2, 4},
     .types = Types::Same,
     .reduces = ReduceFloats::Mean,
     .from = {{"mean", reduction<ReduceFloats::Mean>}},
     .check = checkReduction,
     .infer = sizesOfReduced,
     .least_axes = axesOfReduced,
     .lower = lowerMean,
     .kernel = meanKernel}};
// The sum, in float32. Attributes as for the mean.
const RegisterOperator sum_operator{inFloats(ReduceFloats::Sum, {{"sum", reduction<ReduceFloats::Sum>}})};
// The root of the sum of squares.
const RegisterOperator length_operator{inFloats(
    ReduceFloats::Length,
    {{"norm", reduction<ReduceFloats::Length>}, {"linalg_vector_norm", reduction<ReduceFloats::Length>}})};
const RegisterOperator largest_operator{
    inFloats(ReduceFloats::Largest, {{"amax", reduction<ReduceFloats::Largest>}})};
const RegisterOperator smallest_operator{
    inFloats(ReduceFloats::Smallest, {{"amin", reduction<ReduceFloats::Smallest>}})};

} // namespace
} // namespace jit_passes::x86
