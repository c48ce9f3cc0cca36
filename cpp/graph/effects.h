// Whether operators write to memory of their operands, or return it.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// Whether any node may write to a value. Most graphs have no such node.
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

} // namespace jit_passes JIT_PASSES_API
