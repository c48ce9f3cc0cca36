// Checks for everything that a pass can break in a graph.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// Raises an error that names the node where
//   - an operand is not defined before its use, in this block or one around it;
//   - the uses that a value lists are not the uses in the graph;
//   - no operator, of PyTorch or custom, takes these operands;
//   - blocks do not have the inputs and results that their node needs.
// PyTorch's own lint does not look at operators, and its messages name no node. All this takes one walk.
void lint(Graph& graph);

} // namespace jit_passes JIT_PASSES_API
