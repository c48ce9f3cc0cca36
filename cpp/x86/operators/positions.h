// Operators that move elements along axes: y[i, j, ...] = x[from_0(i), from_1(j), ...].
#pragma once

#include "x86/lowering/lowering.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {

// The position in the operand of element `at` along an axis of the result, which has `rank` axes. `size` is the
// axis's size in the operand. The operand may lack the first axes.
using PositionOf = int64_t (*)(const Operator& op, int64_t axis, int64_t rank, int64_t at, int64_t size);

// Copies with an axis innermost whose elements do not move. If there is none, elements are copied one by one.
void lowerPositions(Lowering& state, size_t index, PositionOf position);
Part positionsKernel(const StepContext& c, PositionOf position);
// The last axis whose first element does not move; if there is none, the last axis.
int64_t restingAxis(const Operator& op, int64_t rank, PositionOf position);

// The declaration with the fields of all these operators.
template <PositionOf kPosition>
Declaration withPositions(Declaration declaration) {
  declaration.types = Types::Same;
  declaration.moves = declaration.keeps_codes = true;
  declaration.prefers = [](const Operator& op, int64_t rank) { return restingAxis(op, rank, kPosition); };
  declaration.lower = [](Lowering& state, size_t index) { lowerPositions(state, index, kPosition); };
  declaration.kernel = [](const StepContext& c) { return positionsKernel(c, kPosition); };
  return declaration;
}

} // namespace jit_passes::x86
