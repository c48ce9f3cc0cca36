// Where a replacement may stand, and putting it there, in the place of a match.
#pragma once

#include "graph/alias_classes.h"
#include "rule.h"

namespace jit_passes {

struct Placement {
  Node* point;                // the replacement goes in front of it
  std::vector<Node*> hoisted; // after these have been moved there
};

// In front of the first use of a result, and at the latest where the last matched node stands. Nothing
// when an operand is computed only after that.
std::optional<Placement> placementOf(const Match& match, const Pattern& pattern);

// Returns the new nodes; the matched ones are destroyed, each after `on_destroy` has seen it.
std::vector<Node*> replaceMatch(
    const Rule& rule, const MatchView& view, const Placement& placement, AliasClasses* aliases,
    const std::function<void(Node*)>& on_destroy);

} // namespace jit_passes
