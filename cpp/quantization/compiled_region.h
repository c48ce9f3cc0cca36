// Regions that a compiler has taken over. A compiled region is a module of the class
// `jit_passes.CompiledRegion` with one attribute, `compiled`, which does the work. Its call stays in the graph of
// the model, wherever other calls are inlined: see isCompiledRegion in calls.h.
#pragma once

#include "graph/module.h"

namespace jit_passes JIT_PASSES_API {

// Puts what a compiler has made of a region in its place: a module whose forward takes and gives what the region
// does, or an object of a custom class with `run(Tensor[] inputs) -> Tensor[]`.
void replaceRegion(Module& root, Graph& graph, const std::string& name, const c10::IValue& compiled);

} // namespace jit_passes JIT_PASSES_API
