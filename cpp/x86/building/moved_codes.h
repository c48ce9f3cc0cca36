// Values that operators have moved.
#pragma once

#include "graph/graph.h"
#include "x86/program/program.h"

namespace jit_passes::x86 {

// Quantizes and dequantizes what was moved, where a function of one value reads it: on the grid that it has, so it
// stays the same, and the function becomes a table of these codes.
void quantizeMoved(Graph& graph);

// Of the result of an operator that moves codes: a padding adds the zero point to them.
Grid movedGrid(Kind kind, Grid grid);

} // namespace jit_passes::x86
