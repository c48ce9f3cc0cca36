// Finding subgraphs.
#pragma once

#include <c10/util/FunctionRef.h>

#include "match.h"

namespace jit_passes JIT_PASSES_API {

// How far a match came that failed.
struct NearMiss {
  size_t matched = 0; // nodes
  std::string reason;
};

// Whether a match is taken. For one that is not, the operands are exchanged further.
using Accept = c10::function_ref<bool(const Match&)>;

// The match whose last node is `node`, if there is one that is taken. Values between the matched nodes that are
// not among the pattern's results have no use outside of the match, so replacing the results leaves the
// matched nodes dead. Where several nodes fit, the first in program order is taken; where operands may be
// exchanged, they are tried as the pattern has them first.
std::optional<Match> matchAt(
    const Pattern& pattern, Node* node, const MatchOptions& options, Accept accept, NearMiss* miss = nullptr);

} // namespace jit_passes JIT_PASSES_API
