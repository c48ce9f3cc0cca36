// Which values in-place operators write to, directly or through a view.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// Values that some node of the graph may write to. A rewrite must neither merge nor move reads of
// these. Two analyses serve the whole graph, taken before any edit, and neither misses a write. PyTorch's tells one name
// from another by where it stands, and takes all that lists and objects hold for one; ours (alias_classes.h) tells apart
// what different lists hold.
//
// A tensor read from a module may be any other tensor of it, unless `attributes_apart`: then attributes
// share memory with nothing but themselves, as parameters and buffers do.
std::unordered_set<const Value*> writtenValues(
    const std::shared_ptr<Graph>& graph, bool attributes_apart = false);

// Whether any node may write to a value. Most graphs have none, which is seen faster than who
// shares memory with whom.
bool anyMayWrite(Graph& graph);

// Whether the node may write to memory that it is given; were it an operator of that kind.
bool mayWrite(const Node* node);
bool mayWrite(const Node* node, c10::Symbol kind);

// Whether the value is, or holds, something that others may hold too: no number, string, device or None.
bool mayShareMemory(const Value* value);

// Whether the node's first result is a view of an operand, or an operand.
bool returnsAlias(const Node* node);

// Whether operators of that kind may return an operand, or a view of it, though their schemas do not say so. Dropout does
// in eval mode.
bool returnsHiddenAlias(c10::Symbol kind);

// Whether the test holds for an operator of that name with as many results as the node.
bool anyOverload(
    const Node* node, c10::Symbol kind, const std::function<bool(const c10::FunctionSchema&)>& test);

// PyTorch's dead code elimination, which asks who shares memory only where something is written. It takes a hidden alias
// for a tensor of its own, so that a write to it looks dead: with one, all writes stay.
void removeDeadNodes(const std::shared_ptr<Graph>& graph);

} // namespace jit_passes JIT_PASSES_API
