// Finding subgraphs.
#pragma once

#include <c10/util/FunctionRef.h>

#include "match.h"

namespace jit_passes JIT_PASSES_API {

// A match that failed, and how far it came.
struct NearMiss {
  size_t matched = 0; // nodes
  std::string reason;
};

// Whether to accept a match. If not, the search goes on with other orders of operands.
using Accept = c10::function_ref<bool(const Match&)>;

// The match whose last node is `node`, if one is accepted. Results of matched nodes have no use outside of the
// match, except for the pattern's results: once these are replaced, the matched nodes are dead. If several nodes
// fit, the first in program order is taken. Operands are tried in the order of the pattern first, then exchanged.
std::optional<Match> matchAt(
    const Pattern& pattern, Node* node, const MatchOptions& options, Accept accept, NearMiss* miss = nullptr);

} // namespace jit_passes JIT_PASSES_API
