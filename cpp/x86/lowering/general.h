// Functions that lower several operators: see Declaration::lower. Each function makes the step of the declaration.
#pragma once

#include "lowering.h"

namespace jit_passes::x86 {

// Channels of all operands innermost. Includes a table or function that follows.
void lowerChannels(Lowering& state, size_t index);
void lowerWithTable(Lowering& state, size_t index);
// Operands that broadcast.
void lowerBroadcast(Lowering& state, size_t index);
// Rows of the last axis. Includes a quantize that follows.
void lowerRows(Lowering& state, size_t index);
// Operands in any memory order.
void lowerInPlace(Lowering& state, size_t index);
void lowerAsTheyAre(Lowering& state, size_t index);

// Layers that give float32, and may quantize their input at run time. Includes a function and a sum that are the
// only readers of the result, if the sum's other operand is computed already.
void lowerFloatLayer(Lowering& state, size_t index);
// Matrix products. Products read rearranged operands in place, and write their result transposed if a transposition
// follows.
void lowerProduct(Lowering& state, size_t index);

} // namespace jit_passes::x86
