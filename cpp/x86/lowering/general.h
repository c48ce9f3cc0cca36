// Functions that lower several operators: see Declaration::lower. Each function makes the step of the declaration.
#pragma once

#include "x86/program/declaration.h"

namespace jit_passes::x86 {

// Channels of all operands innermost. Includes a table or function that follows.
JIT_PASSES_API void lowerChannels(Lowering& state, size_t index);
JIT_PASSES_API void lowerWithTable(Lowering& state, size_t index);
// Operands that broadcast.
JIT_PASSES_API void lowerBroadcast(Lowering& state, size_t index);
// Rows of the last axis. Includes a quantize that follows.
JIT_PASSES_API void lowerRows(Lowering& state, size_t index);
// Operands in any memory order.
JIT_PASSES_API void lowerInPlace(Lowering& state, size_t index);
JIT_PASSES_API void lowerAsTheyAre(Lowering& state, size_t index);

// Layers that give float32, and may quantize their input at run time. Includes a function, then a sum whose other
// operand is computed already, then a quantize, each if it is the only reader.
JIT_PASSES_API void lowerFloatLayer(Lowering& state, size_t index);
// Matrix products. Products read rearranged operands in place, and write their result transposed if a transposition
// follows.
JIT_PASSES_API void lowerProduct(Lowering& state, size_t index);

} // namespace jit_passes::x86
