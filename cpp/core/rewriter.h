// Replacing what a pattern matched.
#pragma once

#include "matcher.h"

namespace jit_passes JIT_PASSES_API {

// Says why a match must not be rewritten; nothing when it may.
using MatchCheck = std::function<std::optional<std::string>(const Match&, const Pattern&)>;

// The replacement takes the pattern's inputs in the same order, under any names. A match::name
// that the pattern has too stands for the operator that was matched there.
struct Rule {
  Rule(
      std::string name, const std::string& pattern, const std::string& replacement, Alternatives alternatives,
      MatchCheck check);

  std::string name;
  Pattern pattern;
  Pattern replacement;
  MatchCheck check; // may be empty
};

struct Rewrite {
  std::string rule;
  const Node* principal; // destroyed by then: to compare, not to follow
  std::string refused;   // why the rule's check said no; "" when the match was rewritten
};

// Tries the rules in order at every node, nested blocks included, and replaces what matches first.
std::vector<Rewrite> rewrite(Graph& graph, const std::vector<std::shared_ptr<Rule>>& rules);

} // namespace jit_passes JIT_PASSES_API
