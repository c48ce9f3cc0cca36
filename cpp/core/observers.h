// Finding observers in a graph.
#pragma once

#include "graph.h"

namespace jit_passes {

bool isObserver(const Node* node);
// In program order.
std::vector<Node*> observersOf(Graph& graph);

} // namespace jit_passes
