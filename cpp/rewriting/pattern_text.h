// Patterns and replacements as IR text.
#pragma once

#include "pattern.h"

namespace jit_passes JIT_PASSES_API {

// A graph from IR text that has been checked: parsing malformed text never ends in an assertion.
std::shared_ptr<Graph> readGraph(const std::string& ir, const Alternatives& alternatives);

// Whether each input of the graph has a type of its own in the text.
std::vector<bool> typedInputs(const std::string& ir);

} // namespace jit_passes JIT_PASSES_API
