// One number for all along some axes.
#include "checks.h"

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

Declaration inFloats(const char* name) {
  return {
      .name = name,
      .inputs = {1, 1},
      .attributes = {2, kMostAxes + 1},
      .tensors = {0, 0},
      .types = Types::Real,
      .check = checkReduction,
      .infer = sizesOfReduced,
      .least_axes = axesOfReduced};
}

const RegisterOperator mean_operator{
    Kind::Mean,
    {.name = "mean",
     .inputs = {1, 1},
     .attributes = {2, 4},
     .tensors = {0, 0},
     .types = Types::Same,
     .check = checkReduction,
     .infer = sizesOfReduced,
     .least_axes = axesOfReduced}};
const RegisterOperator sum_operator{Kind::Sum, inFloats("sum")};
const RegisterOperator length_operator{Kind::Length, inFloats("length")};
const RegisterOperator largest_operator{Kind::Largest, inFloats("largest")};
const RegisterOperator smallest_operator{Kind::Smallest, inFloats("smallest")};

} // namespace
} // namespace jit_passes::x86
