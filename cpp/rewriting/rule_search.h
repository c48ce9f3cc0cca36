// How a rule looks for matches, and why one must not be rewritten.
#pragma once

#include "replacer.h"

namespace jit_passes {

// Returns the values of the module's attributes to which the graph does not assign.
ReadAttribute attributesOf(const PassContext& context);

MatchOptions matchOptions(const Rule& rule, const ReadAttribute& attribute);

// Why a match must not be rewritten, or nothing.
std::optional<std::string> refusalOf(
    const MatchView& view, std::optional<AliasClasses>& aliases, const Rule& rule,
    const std::optional<Placement>& placement);

} // namespace jit_passes
