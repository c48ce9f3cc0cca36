// Rules: a pattern, and what takes its place.
#pragma once

#include "graph/alias_classes.h"
#include "graph/registry.h"
#include "matcher.h"
#include "pattern_text.h"

namespace jit_passes JIT_PASSES_API {

// The values that some node may write to, found when a rule first asks, and kept up to date by edits.
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

// A match as a rule's functions see it.
struct MatchView {
  const Match& match;
  const Pattern& pattern;
  PassContext& context;
  const ReadAttribute& attribute;
  WrittenValues& written;

  // The value of the graph for an input or a result of the pattern, by its name.
  Value* value(std::string_view name) const;
  // Its content, if known ahead of time: a constant, or the attribute that it is read from.
  std::optional<c10::IValue> known(const Value* input) const;
  std::optional<c10::IValue> known(std::string_view name) const;
  std::optional<double> number(std::string_view name) const { return constantNumber(value(name)); }
  bool isWritten(std::string_view name) const { return written.has(value(name)); }
};

// Says why a match must not be rewritten; nothing when it may. An empty reason makes no remark: nobody expects a rewrite.
using MatchCheck = std::function<std::optional<std::string>(const MatchView&)>;

// The result of a check that refuses a match without a reason, unless the condition holds.
inline std::optional<std::string> onlyIf(bool holds) {
  return holds ? std::nullopt : std::optional<std::string>("");
}

// An input of the replacement that the pattern does not have. Tensors become attributes of the
// module that the match belongs to, all else constants.
struct Computed {
  enum Kind { Buffer, Parameter, Constant };

  c10::IValue value;
  Kind kind = Buffer;
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
  bool same_memory = false;          // whether it reads, shares and writes the memory that the pattern does
  std::vector<std::string> computed; // names of the inputs that the pattern does not have

 private:
  void checkReplacement();
};

// The operators that names with alternatives stand for in this match.
Kinds kindsOf(const Rule& rule, const Match& match);

} // namespace jit_passes JIT_PASSES_API
