// Places of values in one arena. Values that are never needed at one time share their place.
#pragma once

#include "steps.h"

namespace jit_passes::x86 {

// The memory that this one is a slice or another name of, or itself.
Memory& ownerOf(Lowered& lowered, size_t id);
// Sets the strides of dense codes.
void layOutDense(Memory& memory);
// Finds a place in the arena for all memory that steps use.
void placeMemory(Lowered& lowered);

} // namespace jit_passes::x86
