// Finding subgraphs.
#pragma once

#include "pattern.h"

namespace jit_passes JIT_PASSES_API {

struct Match {
  std::unordered_map<const Value*, Value*> values;             // pattern value -> graph value
  std::unordered_map<const Node*, Node*> nodes;                // pattern node -> graph node
  std::unordered_map<const Value*, std::vector<Value*>> rests; // pattern %rest -> operands

  // The values that an input of the pattern stands for: one, several for %rest, none where it is not used.
  std::vector<Value*> operandsOf(const Value* input) const;
  // The matched node that does the arithmetic, whose name and source line the result inherits.
  Node* principal(const Pattern& pattern) const;
};

// How far a match came that failed.
struct NearMiss {
  size_t matched = 0; // nodes
  std::string reason;
};

// The match whose last node is `node`, if there is one. Values between the matched nodes that are not
// among the pattern's results have no use outside of the match, so replacing the results leaves the
// matched nodes dead. Where several nodes fit, the first in program order is taken.
std::optional<Match> matchAt(const Pattern& pattern, Node* node, NearMiss* miss = nullptr);

} // namespace jit_passes JIT_PASSES_API
