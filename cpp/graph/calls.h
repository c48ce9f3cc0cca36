// Calls of methods and functions, and what is left of them when they are inlined: the path of the module
// that a node belongs to, which moduleOf reads.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// Whether the value is a module, also one whose class is known only while it runs: one of an interface.
bool isModule(const Value* value);
bool isInterface(const Value* value);

// Inlines all calls, those of forked branches too. PyTorch's own inlining keeps the last part of a module's
// path only ("0" of enc.0), and in branches nothing.
void inlineCalls(Graph& graph);
// Runs in place what is forked and only waited for: it could run anywhere, and here other passes see it. Returns whether
// there was some.
bool inlineForks(Graph& graph);
// The first call that inlining has left, or nothing.
const Node* findCall(Graph& graph);

// A region that was outlined: a module which holds operators of its caller, and is inlined as if it were not there.
bool isRegion(const c10::TypePtr& type);
// A module that a compiler has made of a region: see compiled_region.h.
bool isCompiledRegion(const c10::TypePtr& type);
// A module that has been through a stage, quantized say: it holds the report of that, see stages/module.py.
bool hasReport(const c10::TypePtr& type);
// Whether it is one of the two. Calls of these stay where others are inlined, and nothing within them is changed.
bool isOpaque(const c10::TypePtr& type);
bool callsOpaque(const Node* node);

// The call stack of nodes that were written in a module, "enc.0(Linear)".
torch::jit::InlinedCallStackPtr stackWithin(const std::string& module);

// Gives nodes of modules that have several names the first one, as named_modules does.
void nameModules(Graph& graph, const torch::jit::Module& root);

} // namespace jit_passes JIT_PASSES_API
