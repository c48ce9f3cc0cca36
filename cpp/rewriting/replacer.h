// Puts a replacement into a graph, where its operands and results allow it.
#pragma once

#include "graph/alias_classes.h"
#include "rule.h"

namespace jit_passes {

struct Placement {
  Node* point;                // the replacement goes in front of it
  std::vector<Node*> hoisted; // after these have been moved there
};

// The place in front of the last matched node, or of the first use of a result if that comes earlier. Nothing if an
// operand is computed only after that.
std::optional<Placement> placementOf(const Match& match, const Pattern& pattern);

// Returns the new nodes. Calls `on_destroy` for each matched node, and destroys it.
std::vector<Node*> replaceMatch(
    const Rule& rule, const MatchView& view, const Placement& placement, AliasClasses* aliases,
    const std::function<void(Node*)>& on_destroy);

} // namespace jit_passes
