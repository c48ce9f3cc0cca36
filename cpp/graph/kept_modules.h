// Paths of modules through a file. Paths come from call stacks, which files do not keep, and the stable names of
// nodes depend on them. So a saved module keeps the paths in an attribute. Clones get call stacks back, without the
// attribute.
#pragma once

#include "attributes.h"

namespace jit_passes JIT_PASSES_API {

inline const std::string kKeptModules = "jit_passes_modules"; // name of the attribute

// Writes the modules of the method's nodes into the attribute.
void keepModules(Module& module, const std::string& method);
// Gives the nodes of the method's inlined graph the modules of the attribute. A kind of operator whose count differs
// from the attribute's is left alone, and so is a graph with call stacks.
void restoreModules(const Module& module, const std::string& method, Graph& graph);

} // namespace jit_passes JIT_PASSES_API
