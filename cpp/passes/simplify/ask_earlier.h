// Sizes of computed tensors, asked of the model's inputs.
#pragma once

#include "graph/registry.h"

namespace jit_passes {

// Returns whether it changed something.
bool askEarlier(PassContext& context);

} // namespace jit_passes
