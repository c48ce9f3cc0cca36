// Sizes of what a model computes, asked of what it takes.
#pragma once

#include "graph/registry.h"

namespace jit_passes {

// Returns whether it changed something.
bool askEarlier(PassContext& context);

} // namespace jit_passes
