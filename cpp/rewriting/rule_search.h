// The search for matches of a rule, and the reason why a match must not be rewritten.
#pragma once

#include "replacer.h"

namespace jit_passes {

// A function that returns the content of an attribute, unless the graph assigns to it.
ReadAttribute attributesOf(const PassContext& context);

MatchOptions matchOptions(const Rule& rule, const ReadAttribute& attribute);

// The reason why a match must not be rewritten, or nothing.
std::optional<std::string> refusalOf(
    const MatchView& view, std::optional<AliasClasses>& aliases, const Rule& rule,
    const std::optional<Placement>& placement);

} // namespace jit_passes
