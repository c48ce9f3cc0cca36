// Rules: a pattern and its replacement.
#pragma once

#include "graph/alias_classes.h"
#include "graph/registry.h"
#include "matcher.h"
#include "pattern_text.h"

namespace jit_passes JIT_PASSES_API {

// The values that some node may write to. The values are found when a rule first asks, and edits keep them up to
// date.
class WrittenValues {
 public:
  explicit WrittenValues(const PassContext& context) : context_(context) {}

  bool has(const Value* value);
  void replace(const Value* old, const Value* replacement);
  void remove(const Node* node); // before it is destroyed

 private:
  const PassContext& context_;
  std::optional<std::unordered_set<const Value*>> values_;
};

// The match that a rule's functions get.
struct MatchView {
  const Match& match;
  const Pattern& pattern;
  PassContext& context;
  const ReadAttribute& attribute;
  WrittenValues& written;

  // The value of the graph that has matched the input or result of this name.
  Value* value(std::string_view name) const;
  // The content of the value, if it is known ahead of time: a constant, or an attribute.
  std::optional<c10::IValue> known(const Value* input) const;
  std::optional<c10::IValue> known(std::string_view name) const;
  std::optional<double> number(std::string_view name) const { return constantNumber(value(name)); }
  bool isWritten(std::string_view name) const { return written.has(value(name)); }
};

// Returns why a match must not be rewritten, or nothing if it may. An empty reason makes no remark, for a match that
// no user expects to be rewritten.
using MatchCheck = std::function<std::optional<std::string>(const MatchView&)>;

// For a check: refuses the match without a remark unless the condition holds.
inline std::optional<std::string> onlyIf(bool holds) {
  return holds ? std::nullopt : std::optional<std::string>("");
}

// The content of an input that only the replacement has. Tensors become attributes of the module that the match
// belongs to, unless `kind` is Constant; other values become constants.
struct Computed {
  enum Kind { Buffer, Parameter, Constant };

  c10::IValue value;
  Kind kind = Buffer;
};
using MatchCompute = std::function<std::unordered_map<std::string, Computed>(const MatchView&)>;

// The replacement takes inputs of the pattern, by name, and values of `compute`. The replacement returns as many
// values as the pattern. A name with alternatives stands for the operator that the pattern's node of that name has
// matched.
struct Rule {
  Rule(std::string name, Pattern pattern, std::shared_ptr<Graph> replacement);

  std::string name;
  Pattern pattern;
  std::shared_ptr<Graph> replacement;
  MatchCheck check;                  // may be empty
  MatchCompute compute;              // may be empty
  bool repeat = true;                // whether it may match nodes that it has made itself
  bool commutative = true;           // whether operands of nodes that commute match in either order
  bool same_memory = false;          // whether replacement and pattern use memory alike
  std::vector<std::string> computed; // names of the inputs that the pattern does not have

 private:
  void checkReplacement();
};

// The operators that names with alternatives stand for in this match.
Kinds kindsOf(const Rule& rule, const Match& match);

} // namespace jit_passes JIT_PASSES_API
