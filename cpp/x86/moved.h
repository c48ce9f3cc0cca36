// Values that operators have moved.
#pragma once

#include "core/graph.h"

namespace jit_passes::x86 {

// Quantizes and dequantizes what was moved, where a function of one value reads it: on the grid that it has, so it
// stays the same, and the function becomes a table of these codes.
void quantizeMoved(Graph& graph);

} // namespace jit_passes::x86
