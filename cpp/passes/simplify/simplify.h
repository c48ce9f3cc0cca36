// Steps of the pass simplify. Each returns whether it changed something.
#pragma once

#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {

bool resolveNoneChecks(PassContext& context);
bool resolveTuples(PassContext& context);
bool propagateConstants(PassContext& context);
bool resolveDicts(PassContext& context);
bool resolveLists(PassContext& context);
bool unrollLoops(PassContext& context);
bool foldConstantLists(PassContext& context);
bool resolveSizeTensors(PassContext& context);
bool resolveSizeLists(PassContext& context);
bool foldDtypes(PassContext& context);
bool settleBranches(PassContext& context);
bool removeRankChecks(PassContext& context);
bool foldSizes(PassContext& context);
bool foldMovedConstants(PassContext& context);

} // namespace jit_passes
