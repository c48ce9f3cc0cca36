// Files keep no call stacks, from which the paths of modules come, and with them the names of nodes. So a module
// keeps the paths in an attribute. Its clones get their call stacks back, and do without the attribute.
#pragma once

#include "module.h"

namespace jit_passes JIT_PASSES_API {

inline const std::string kKeptModules = "jit_passes_modules"; // name of the attribute

// Writes down which modules the method's nodes belong to.
void keepModules(Module& module, const std::string& method);
// Gives the nodes of the method's graph, inlined, the modules that were written down. Kinds of operators of which
// there are more or fewer by now are left alone, and so are graphs that have call stacks.
void restoreModules(const Module& module, const std::string& method, Graph& graph);

} // namespace jit_passes JIT_PASSES_API
