// One number for all along some axes.
#include "checks.h"
#include "core/places.h"
#include "from_graph.h"
#include "x86/lowering.h"

namespace jit_passes::x86 {
namespace {

void checkReduction(const Operator& op) {
  requireForm(op, between(op.attributes[0], 0, 1), "whether axes are kept is 0 or 1");
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

Declaration inFloats(const char* name, ReduceFloats::Which reduces, std::vector<From> from) {
  return {
      .name = name,
      .attributes = {2, kMostAxes + 1},
      .types = Types::Real,
      .reduces = reduces,
      .from = std::move(from),
      .check = checkReduction,
      .infer = sizesOfReduced,
      .least_axes = axesOfReduced,
      .lower = &Lowering::lowerReduction};
}

template <Kind kind>
Planned reduction(const Reader& reader, Node* node) {
  refuseUnless(operandOf(node, "dim") != nullptr && reader.has(node, "dim"), "it goes over all axes");
  refuseUnless(!reader.has(node, "dtype"), "it changes the dtype");
  refuseUnless(
      kind != Kind::Length || numberOf(reader, node->input(1)) == 2.0, "it is another norm than that of 2");
  const auto dims = reader.operand(node, "dim");
  const auto axes = dims.isInt() ? std::vector{dims.toInt()} : dims.toIntVector();
  refuseUnless(!axes.empty(), "it goes over all axes");
  std::vector<int64_t> a{reader.operand(node, "keepdim").toBool()};
  a.insert(a.end(), axes.begin(), axes.end());
  return {{kind, "", {}, 0, a, {}}, {node->input(0)}};
}

const RegisterOperator mean_operator{
    Kind::Mean,
    {.name = "mean",
     .attributes = {2, 4},
     .types = Types::Same,
     .reduces = ReduceFloats::Mean,
     .from = {{"mean", reduction<Kind::Mean>}},
     .check = checkReduction,
     .infer = sizesOfReduced,
     .least_axes = axesOfReduced,
     .lower = &Lowering::lowerMean}};
const RegisterOperator sum_operator{
    Kind::Sum, inFloats("sum", ReduceFloats::Sum, {{"sum", reduction<Kind::Sum>}})};
const RegisterOperator length_operator{
    Kind::Length, inFloats(
                      "length", ReduceFloats::Length,
                      {{"norm", reduction<Kind::Length>}, {"linalg_vector_norm", reduction<Kind::Length>}})};
const RegisterOperator largest_operator{
    Kind::Largest, inFloats("largest", ReduceFloats::Largest, {{"amax", reduction<Kind::Largest>}})};
const RegisterOperator smallest_operator{
    Kind::Smallest, inFloats("smallest", ReduceFloats::Smallest, {{"amin", reduction<Kind::Smallest>}})};

} // namespace
} // namespace jit_passes::x86
