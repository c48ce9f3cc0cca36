// A program with fewer operators that computes the same.
#pragma once

#include "program.h"

namespace jit_passes::x86 {

// Convolutions pad their operands themselves, and operators that nothing reads go.
void simplify(Program& program);

} // namespace jit_passes::x86
