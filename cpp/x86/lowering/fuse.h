// Chains of convolutions.
#pragma once

#include "steps.h"

namespace jit_passes::x86 {

// Joins convolutions with large values in between to one step. These values then have no place in the arena.
void fuseChains(Lowered& lowered);

} // namespace jit_passes::x86
