// Ways to lower that several operators share: see Declaration::lower. Each makes the step that is declared.
#pragma once

#include "lowering.h"

namespace jit_passes::x86 {

// With the channels of all operands innermost; also with a table or function that follows.
void lowerChannels(Lowering& state, size_t index);
void lowerWithTable(Lowering& state, size_t index);
// With operands that broadcast.
void lowerBroadcast(Lowering& state, size_t index);
// Of rows, with the quantize that follows.
void lowerRows(Lowering& state, size_t index);
// Of the operand, or of several, as they lie in memory.
void lowerInPlace(Lowering& state, size_t index);
void lowerAsTheyAre(Lowering& state, size_t index);

// Layers that give float32, and may quantize their input as the plan runs, with a function and a sum that alone read the
// result, if the other operand is there already.
void lowerFloatLayer(Lowering& state, size_t index);
// Matrix products read their operands where they are, and write where a transposition wants the result.
void lowerProduct(Lowering& state, size_t index);

} // namespace jit_passes::x86
