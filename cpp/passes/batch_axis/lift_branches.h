// A step of the pass settle_batch_axis.
#pragma once

#include "graph/registry.h"

namespace jit_passes {

// Returns whether it changed something.
bool liftBranches(PassContext& context);

} // namespace jit_passes
