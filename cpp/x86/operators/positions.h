// Operators that give elements of their operand in other places along axes: y[i, j, ...] = x[from_0(i), from_1(j), ...].
#pragma once

#include "x86/lowering/lowering.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {

// Where element `at` along an axis of the result, which has `rank` axes, comes from; `size` is that of the axis in the
// operand. Axes that the operand does not have are in front.
using PositionOf = int64_t (*)(const Operator& op, int64_t axis, int64_t rank, int64_t at, int64_t size);

// An axis whose elements stay where they are is innermost in memory. Where there is none, elements are copied one by one.
void lowerPositions(Lowering& state, size_t index, PositionOf position);
Part positionsKernel(const StepContext& c, PositionOf position);
// The last axis whose first element stays where it is; the last one where there is none.
int64_t restingAxis(const Operator& op, int64_t rank, PositionOf position);

// The declaration, with the fields that these operators share.
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
