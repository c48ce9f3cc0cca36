// Rules: a pattern, and what takes its place.
#pragma once

#include "graph/alias_classes.h"
#include "graph/registry.h"
#include "matcher.h"
#include "pattern_text.h"

namespace jit_passes JIT_PASSES_API {

// A match as a rule's functions see it.
struct MatchView {
  const Match& match;
  const Pattern& pattern;
  PassContext& context;
  const ReadAttribute& attribute;

  // The value that an input of the pattern stands for.
  Value* value(const Value* input) const { return match.values.at(input); }
  // Its value, if known ahead of time: a constant, or the attribute that it is read from.
  std::optional<c10::IValue> known(const Value* input) const;
};

// Says why a match must not be rewritten; nothing when it may.
using MatchCheck = std::function<std::optional<std::string>(const MatchView&)>;

// An input of the replacement that the pattern does not have. Tensors become attributes of the
// module that the match belongs to, all else constants.
struct Computed {
  c10::IValue value;
  bool parameter = false;
};
using MatchCompute = std::function<std::unordered_map<std::string, Computed>(const MatchView&)>;

// The replacement takes inputs of the pattern, by name, and what `compute` gives; it returns as many
// values as the pattern. A name with alternatives that the pattern has too stands for the operator that
// was matched there.
struct Rule {
  Rule(std::string name, Pattern pattern, std::shared_ptr<Graph> replacement);

  std::string name;
  Pattern pattern;
  std::shared_ptr<Graph> replacement;
  MatchCheck check;                  // may be empty
  MatchCompute compute;              // may be empty
  bool repeat = true;                // whether it may match what it has made itself
  bool commutative = true;           // whether operands of nodes that commute match in either order
  std::vector<std::string> computed; // names of the inputs that the pattern does not have

 private:
  void checkReplacement();
};

// The operators that names with alternatives stand for in this match.
Kinds kindsOf(const Rule& rule, const Match& match);

} // namespace jit_passes JIT_PASSES_API
