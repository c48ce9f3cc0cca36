// A match: for each value and node of a pattern, the value and node of the graph that it has matched.
#pragma once

#include "pattern.h"
#include "value_match.h"

namespace jit_passes JIT_PASSES_API {

struct Match {
  std::unordered_map<const Value*, Value*> values;             // pattern value -> graph value
  std::unordered_map<const Node*, Node*> nodes;                // pattern node -> graph node
  std::unordered_map<const Value*, std::vector<Value*>> rests; // pattern %rest -> operands
  std::shared_ptr<Graph> elements; // elements of constant lists, as constants outside of the graph

  // The values that an input of the pattern has matched: one; any number for %rest; none if the pattern does not use
  // it.
  std::vector<Value*> operandsOf(const Value* input) const;
  // Whether some node's operands were matched in exchanged order.
  bool isExchanged(const Pattern& pattern) const;
  // The matched node that does the arithmetic, whose name and source line the result inherits.
  Node* principal(const Pattern& pattern) const;
};

// Options of the search for a pattern.
struct MatchOptions {
  const ReadAttribute& attribute;
  bool commutative = true; // whether operands of nodes that commute may be exchanged,
  bool named = false;      // also where only the names of inputs tell the difference
};

} // namespace jit_passes JIT_PASSES_API
