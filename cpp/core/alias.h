// Which values in-place operators write to, directly or through a view.
#pragma once

#include "graph.h"

namespace jit_passes {

// Values that some node of the graph may write to. A rewrite must neither merge nor move reads of
// these. One alias analysis serves the whole graph, taken before any edit.
std::unordered_set<const Value*> writtenValues(const std::shared_ptr<Graph>& graph);

} // namespace jit_passes
