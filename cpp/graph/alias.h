// Which values in-place operators write to, directly or through a view.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// Values that some node of the graph may write to. A rewrite must neither merge nor move reads of these values. The
// result is where two analyses of the unedited graph agree, and neither of them misses a write. PyTorch's analysis
// follows the order of nodes, but counts the contents of all lists and objects as one. Ours (alias_classes.h) keeps
// the contents of different lists apart.
//
// A tensor read from a module may be any other tensor of it, unless `attributes_apart`: then attributes
// share memory with nothing but themselves, as parameters and buffers do.
std::unordered_set<const Value*> writtenValues(
    const std::shared_ptr<Graph>& graph, bool attributes_apart = false);

// Whether any node may write to a value. This check is much faster than writtenValues, and most graphs have no node
// that writes.
bool anyMayWrite(Graph& graph);

// Whether the node may write to the memory of its operands. With `kind`: whether it may as an operator of that kind.
bool mayWrite(const Node* node);
bool mayWrite(const Node* node, c10::Symbol kind);

// Whether other values may share memory with this one or with its contents. Numbers, strings, devices and None
// cannot.
bool mayShareMemory(const Value* value);

// Whether the node's first result is a view of an operand, or an operand.
bool returnsAlias(const Node* node);

// Whether operators of that kind may return an operand, or a view of it, though their schemas do not say so. Dropout
// does in eval mode.
bool returnsHiddenAlias(c10::Symbol kind);

// Whether the test holds for some overload of that name with as many results as the node.
bool anyOverload(
    const Node* node, c10::Symbol kind, const std::function<bool(const c10::FunctionSchema&)>& test);

// PyTorch's dead code elimination, with an alias analysis only where the graph has writes. That analysis takes a
// hidden alias (see returnsHiddenAlias) for a new tensor, so a write to it looks dead. A graph with one keeps all
// writes.
void removeDeadNodes(const std::shared_ptr<Graph>& graph);

} // namespace jit_passes JIT_PASSES_API
