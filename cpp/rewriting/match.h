// A match: for each value and node of a pattern, the one of the graph that stands for it.
#pragma once

#include "value_match.h"

namespace jit_passes JIT_PASSES_API {

struct Match {
  std::unordered_map<const Value*, Value*> values;             // pattern value -> graph value
  std::unordered_map<const Node*, Node*> nodes;                // pattern node -> graph node
  std::unordered_map<const Value*, std::vector<Value*>> rests; // pattern %rest -> operands
  std::shared_ptr<Graph> elements; // holds those of constant lists, as constants that the graph does not have

  // The values that an input of the pattern stands for: one, several for %rest, none where it is not used.
  std::vector<Value*> operandsOf(const Value* input) const;
  // Whether the operands of a node have another order than in the pattern.
  bool isExchanged(const Pattern& pattern) const;
  // The matched node that does the arithmetic, whose name and source line the result inherits.
  Node* principal(const Pattern& pattern) const;
};

// How a pattern is looked for.
struct MatchOptions {
  const ReadAttribute& attribute;
  bool commutative = true; // whether operands of nodes that commute may be exchanged,
  bool named = false;      // also where only the names of inputs tell the difference
};

} // namespace jit_passes JIT_PASSES_API
