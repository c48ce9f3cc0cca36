// Names of nodes that people and reports use.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

using NodeNames = std::unordered_map<const Node*, std::string>;

// Stable names, "layer1.0.conv1:conv2d", for all nodes but constants and quantization: a function of
// the model alone, whether it was scripted, traced or frozen.
NodeNames nodeNames(Graph& graph);

} // namespace jit_passes JIT_PASSES_API
