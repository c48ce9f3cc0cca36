// Memory of values: each has a place in one arena, which values share that are never needed at once.
#pragma once

#include "steps.h"

namespace jit_passes::x86 {

// The memory of which it is a part or another name, or itself.
Memory& ownerOf(Lowered& lowered, size_t id);
// Sets the strides of codes without anything in between.
void layOutDense(Memory& memory);
// Finds a place in the arena for all memory that steps touch.
void placeMemory(Lowered& lowered);

} // namespace jit_passes::x86
