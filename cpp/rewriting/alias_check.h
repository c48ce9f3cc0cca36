// Whether a write to memory makes a rewrite wrong.
#pragma once

#include "graph/alias_classes.h"
#include "rule.h"

namespace jit_passes {

// The alias classes of the graph; nothing where neither the model nor a replacement writes to memory.
std::optional<AliasClasses> aliasesOf(PassContext& context, const std::vector<const Rule*>& rules);

// Why a write makes the rewrite wrong, if the replacement stands in front of `point`; or nothing.
std::optional<std::string> aliasRefusal(
    AliasClasses& aliases, const Rule& rule, const Match& match, const Node* point);

} // namespace jit_passes
