// Regions that a compiler has replaced. A compiled region is a module of the class `jit_passes.CompiledRegion` with
// one attribute, `compiled`, which does the work. Its call is never inlined: see isCompiledRegion in calls.h.
#pragma once

#include "graph/module.h"

namespace jit_passes JIT_PASSES_API {

// Replaces a region by its compiled form: a module whose forward has the signature of the region, or an object of a
// custom class with `run(Tensor[] inputs) -> Tensor[]`.
void replaceRegion(Module& root, Graph& graph, const std::string& name, const c10::IValue& compiled);

} // namespace jit_passes JIT_PASSES_API
