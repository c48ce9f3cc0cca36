// Finding subgraphs. Patterns are IR text:
//
//   graph(%x, %w, %rest):
//     %y = aten::conv2d(%x, %w, %rest)     # %rest... as last operand stands for all that follow
//     %z = match::activation(%y)           # match::... stands for any of a set of operators
//     return (%z)
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// The operators that each match::name of a pattern may stand for.
using Alternatives = std::unordered_map<c10::Symbol, std::unordered_set<c10::Symbol>>;

struct Pattern {
  Pattern(const std::string& ir, Alternatives alternatives);

  // The node that makes the pattern's result; matching starts there and goes up.
  const Node* anchor() const { return graph->outputs().at(0)->node(); }
  bool mayAnchorAt(c10::Symbol kind) const;

  std::shared_ptr<Graph> graph;
  Alternatives alternatives;
};

struct Match {
  std::unordered_map<const Value*, Value*> values;             // pattern value -> graph value
  std::unordered_map<const Node*, Node*> nodes;                // pattern node -> graph node
  std::unordered_map<const Value*, std::vector<Value*>> rests; // pattern %rest -> operands

  // The matched node that does the arithmetic, whose name and source line the result inherits.
  Node* principal(const Pattern& pattern) const;
};

// The match whose last node is `node`, if there is one. Values between the matched nodes have no
// use outside of the match, so replacing the last node leaves the others dead.
std::optional<Match> matchAt(const Pattern& pattern, Node* node);

// Whether the pattern's value stands for all remaining operands of the node it is passed to.
bool isRest(const Value* value);

} // namespace jit_passes JIT_PASSES_API
