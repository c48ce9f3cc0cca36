// Inlining of methods and functions. A node keeps the path of the module that it belongs to, which moduleOf reads.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// Whether the value is a module. A value of an interface type counts, though its class is known at run time only.
bool isModule(const Value* value);
bool isInterface(const Value* value);

// Inlines all calls, also in forked branches. PyTorch's own inlining keeps only the last part of a module's path
// ("0" of enc.0), and nothing in forked branches.
void inlineCalls(Graph& graph);
// Inlines forked branches whose result is only waited for, so that other passes see their nodes. The language lets a
// branch run at any moment up to the wait. Returns whether there were any.
bool inlineForks(Graph& graph);
// The first call that inlining has left, or nothing.
const Node* findCall(Graph& graph);

// Whether it is an outlined region: a module that holds operators of its caller, and leaves no trace in paths when
// inlined.
bool isRegion(const c10::TypePtr& type);
// Whether it is a module that a compiler has made of a region: see compiled_region.h.
bool isCompiledRegion(const c10::TypePtr& type);
// Whether it is a module that has been through a stage, such as convert, and holds its report: see stages/module.py.
bool hasReport(const c10::TypePtr& type);
// Whether it is a compiled region or has a report. Calls of such modules are not inlined, and their graphs not
// changed.
bool isOpaque(const c10::TypePtr& type);
bool callsOpaque(const Node* node);

// The call stack for nodes of a module, "enc.0(Linear)".
torch::jit::InlinedCallStackPtr stackWithin(const std::string& module);

// Gives nodes of a module with several paths the first path, as named_modules does.
void nameModules(Graph& graph, const torch::jit::Module& root);

} // namespace jit_passes JIT_PASSES_API
