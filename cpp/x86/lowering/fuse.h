// Chains of convolutions.
#pragma once

#include "steps.h"

namespace jit_passes::x86 {

// Makes one step of convolutions with large values in between, which then lie in no memory of their own.
void fuseChains(Lowered& lowered);

} // namespace jit_passes::x86
