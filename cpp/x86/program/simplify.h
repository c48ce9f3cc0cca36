// Turns a program into one with fewer operators and equal results.
#pragma once

#include "program.h"

namespace jit_passes::x86 {

// Paddings become part of convolutions, axes are shuffled by one operator, and operators without readers go.
void simplify(Program& program);

} // namespace jit_passes::x86
