// Where a replacement may stand.
#pragma once

#include "matcher.h"

namespace jit_passes {

struct Placement {
  Node* point;                // the replacement goes in front of it
  std::vector<Node*> hoisted; // after these have been moved there
};

// In front of the first use of a result, and at the latest where the last matched node stands. Nothing
// when an operand is computed only after that.
std::optional<Placement> placementOf(const Match& match, const Pattern& pattern);

} // namespace jit_passes
