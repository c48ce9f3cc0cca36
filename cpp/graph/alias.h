// Which values in-place operators write to, directly or through a view.
#pragma once

#include "effects.h"

namespace jit_passes JIT_PASSES_API {

// Values that some node of the graph may write to. A rewrite must neither merge nor move reads of these values. The
// result is where two analyses of the unedited graph agree, and neither of them misses a write. PyTorch's analysis
// follows the order of nodes, but counts the contents of all lists and objects as one. Ours (alias_classes.h) keeps
// the contents of different lists apart.
//
// A tensor read from a module may be any other tensor of it, unless `attributes_apart`: then attributes
// share memory with nothing but themselves, as parameters and buffers do.
//
// This takes much longer than anyMayWrite.
std::unordered_set<const Value*> writtenValues(
    const std::shared_ptr<Graph>& graph, bool attributes_apart = false);

// PyTorch's dead code elimination, with an alias analysis only where the graph has writes. That analysis takes a
// hidden alias (see returnsHiddenAlias) for a new tensor, so a write to it looks dead. A graph with one keeps all
// writes.
void removeDeadNodes(const std::shared_ptr<Graph>& graph);

} // namespace jit_passes JIT_PASSES_API
