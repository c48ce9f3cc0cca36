// A graph as text for people.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// Values have the stable names of the nodes that make them, attributes their paths, and constants
// stand where they are used:
//
//   conv1:conv2d = aten::conv2d(x, conv1.weight, conv1.bias, [1, 1], [0, 0], [1, 1], 1)
//
// A change of one node changes only the lines that name it, so two texts can be compared line by line.
std::string formatGraph(Graph& graph);

} // namespace jit_passes JIT_PASSES_API
