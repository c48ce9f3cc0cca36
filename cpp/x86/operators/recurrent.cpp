#include "x86/kernels/recurrent.h"

#include "x86/kernels/dynamic.h"
#include "x86/lowering/general.h"
#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"

namespace jit_passes::x86 {

const Kind Kind::Recurrent("recurrent");

namespace {

void checkRecurrent(const Operator& op) {
  using A = RecurrentAttributes;
  const auto& a = op.attributes;
  refuseUnless(between(a[A::Cell], 0, int64_t(Cell::Count) - 1), "there is no cell ", a[A::Cell]);
  refuseUnless(
      between(a[A::Directions], 1, 2) && between(a[A::BatchFirst], 0, 1) &&
          between(a[A::Form], 0, int64_t(RangeForm::Count) - 1),
      "it has ", a[A::Directions], " directions (1 or 2), ", a[A::BatchFirst],
      " for whether the batch is first (0 or 1), or ", a[A::Form], ", which is no range form");
  checkWeights(op, 2);
  const Cell cell{a[A::Cell]};
  const auto& weight = op.tensors[kWeight];
  refuseUnless(
      weight.size(0) == a[A::Directions] * gatesOf(cell) * weight.size(1), "weights of the shape ",
      weight.sizes(), " are none of ", a[A::Directions], " directions with ", gatesOf(cell), " gates");
  refuseUnless(
      int64_t(op.inputs.size()) == 1 + statesOf(cell), "it reads ", statesOf(cell), " states, and has ",
      op.inputs.size() - 1);
}

Sizes sizesOfStates(const Operands& operands) {
  using A = RecurrentAttributes;
  const Operator& op = operands.op;
  const Sizes& first = operands.first();
  const int64_t directions = op.attributes[A::Directions], time = op.attributes[A::BatchFirst];
  const Cell cell{op.attributes[A::Cell]};
  const auto& weight = op.tensors[kWeight];
  require(
      op, first.size() == 3 && first.back() == weight.size(0), "takes three axes with ", weight.size(0),
      " features, and got the shape ", first);
  require(op, first[time] > 0, "takes one step at least, and got the shape ", first);
  const Sizes state{directions, first[1 - time], weight.size(1)};
  for (size_t i = 1; i < operands.sizes.size(); ++i) {
    require(op, operands[i] == state, "takes states of the shape ", state, ", and got ", operands[i]);
  }
  Sizes sizes = first;
  sizes.back() = statesOf(cell) * directions * weight.size(1);
  return sizes;
}

void lowerRecurrent(Lowering& state, size_t index) {
  lowerChannels(state, index);
  state.result.steps.back().packed =
      state.weights.packed(state.program, state.program.operators[index], true);
}

// From the products of the input and the states before the first step to all states: see RecurrentAttributes.
const RegisterOperator recurrent_operator{
    {.name = "recurrent",
     .inputs = {2, 3},
     .attributes = {RecurrentAttributes::Count, RecurrentAttributes::Count},
     .tensors = {3, 3},
     .types = Types::Real,
     .layer = LayerKind::Recurrent,
     .check = checkRecurrent,
     .infer = sizesOfStates,
     .channels = lastAxisOf,
     .lower = lowerRecurrent,
     .step = Does::Recur}};

} // namespace
} // namespace jit_passes::x86
