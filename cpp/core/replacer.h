// Putting a replacement in the place of a match.
#pragma once

#include "alias_classes.h"
#include "placement.h"
#include "rule.h"

namespace jit_passes {

// Returns the new nodes; the matched ones are destroyed, each after `on_destroy` has seen it.
std::vector<Node*> replaceMatch(
    PassContext& context, const Rule& rule, const Match& match, const Placement& placement,
    AliasClasses* aliases, const std::function<void(Node*)>& on_destroy);

} // namespace jit_passes
