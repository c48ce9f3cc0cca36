// How a rule looks for matches, and why one must not be rewritten.
#pragma once

#include "replacer.h"

namespace jit_passes {

// What the module's attributes hold, where the graph does not assign to them.
ReadAttribute attributesOf(const PassContext& context);

MatchOptions matchOptions(const Rule& rule, const ReadAttribute& attribute);

// Why a match must not be rewritten, or nothing.
std::optional<std::string> refusalOf(
    PassContext& context, const ReadAttribute& attribute, std::optional<AliasClasses>& aliases,
    const Rule& rule, const Match& match, const std::optional<Placement>& placement);

} // namespace jit_passes
