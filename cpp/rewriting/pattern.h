// Patterns of subgraphs: graphs themselves, made from text (pattern_text.h) or from a scripted function:
//
//   graph(%x, %w : Tensor, %rest):
//     %y = aten::conv2d(%x, %w, %rest)     # %rest... as last operand stands for all that follow
//     %z = match::activation(%y)           # stands for any of the operators listed for this name
//     return (%z)
#pragma once

#include "pattern_text.h"

namespace jit_passes JIT_PASSES_API {

struct Pattern {
  // Raises an error with the line of the text and the reason.
  Pattern(const std::string& text, Alternatives alternatives);
  Pattern(std::shared_ptr<Graph> graph, Alternatives alternatives);

  // Matching starts at the last node and goes up through operands. Nodes that are not reached this way are searched
  // among the users of values that have been matched.
  const Node* anchor() const { return anchor_; }
  bool mayAnchorAt(c10::Symbol kind) const { return mayBe(anchor_, kind); }
  bool mayBe(const Node* wanted, c10::Symbol kind) const;
  // Whether the input has a type in the text or function. A typed input matches values of that type only.
  bool isTyped(const Value* input) const { return typed_.count(input) > 0; }
  // Whether exchanged operands of a commutative node give another match: the first two operands are computed
  // differently. With `named`, different names of inputs are enough.
  bool mayExchange(const Node* wanted, bool named) const;
  bool exchanges(bool named) const;
  // Nodes that compute, constants left out.
  const std::vector<const Node*>& nodes() const { return nodes_; }

  std::shared_ptr<Graph> graph;
  Alternatives alternatives;

 private:
  void check();
  void findExchanges();
  bool differ(const Value* a, const Value* b) const;

  const Node* anchor_ = nullptr;
  std::vector<const Node*> nodes_;
  std::unordered_set<const Value*> typed_;
  std::unordered_map<const Node*, bool> exchanged_; // whether the operands differ in more than names
};

// Whether the pattern's value is a %rest, which stands for all remaining operands of a node.
bool isRest(const Value* value);
// The name of an input in the text or the function. The name connects a pattern with its replacement.
std::string inputName(const Value* input);

// Raises an error where %rest is not the last operand.
void checkRests(Graph& graph);

} // namespace jit_passes JIT_PASSES_API
