// Checks for everything that a pass can break in a graph.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// Raises an error that names the node where
//   - an operand is not defined before its use, in the same block or one around it;
//   - the uses that a value knows of are not those that there are;
//   - no operator takes these operands, be it PyTorch's or a custom one;
//   - blocks do not have the values that their node needs.
// In one walk over the graph. PyTorch's own lint does not look at operators, and its messages do not
// say where.
void lint(Graph& graph);

} // namespace jit_passes JIT_PASSES_API
