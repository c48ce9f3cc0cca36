// Whether memory that is written to makes a rewrite wrong.
#pragma once

#include "graph/alias_classes.h"
#include "rule.h"

namespace jit_passes {

// Only where something writes, in the model or in what rules put there.
std::optional<AliasClasses> aliasesOf(PassContext& context, const std::vector<const Rule*>& rules);

// How such memory makes a match wrong, if its replacement stands in front of `point`; or nothing.
std::optional<std::string> aliasRefusal(
    AliasClasses& aliases, const Rule& rule, const Match& match, const Node* point);

} // namespace jit_passes
