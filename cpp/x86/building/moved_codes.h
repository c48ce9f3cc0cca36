// Values that operators have moved.
#pragma once

#include "graph/graph.h"
#include "x86/program/program.h"

namespace jit_passes::x86 {

// Quantizes and dequantizes a moved value again if an elementwise operator reads it. The grid is the value's own, so
// the value does not change, and a function of this value alone becomes a table of its codes.
void requantizeMoved(Graph& graph);

// The grid of the result of an operator that moves codes. A padding adds the zero point to the codes that can occur.
Grid movedGrid(Kind kind, Grid grid);

} // namespace jit_passes::x86
