// Patterns of subgraphs: graphs themselves, made from text (pattern_text.h) or from a scripted function:
//
//   graph(%x, %w : Tensor, %rest):
//     %y = aten::conv2d(%x, %w, %rest)     # %rest... as last operand stands for all that follow
//     %z = match::activation(%y)           # stands for any of the operators listed for this name
//     return (%z)
#pragma once

#include "graph/graph.h"

namespace jit_passes JIT_PASSES_API {

// The operators that a name in a pattern may stand for, match::activation or aten::relu.
using Alternatives = std::unordered_map<c10::Symbol, std::unordered_set<c10::Symbol>>;

struct Pattern {
  // Raises an error that says what is wrong, and in which line.
  Pattern(const std::string& text, Alternatives alternatives);
  Pattern(std::shared_ptr<Graph> graph, Alternatives alternatives);

  // Matching starts at the last node and goes up through operands; nodes that it does not reach this
  // way are looked for among the users of values that it does.
  const Node* anchor() const { return anchor_; }
  bool mayAnchorAt(c10::Symbol kind) const { return mayBe(anchor_, kind); }
  bool mayBe(const Node* wanted, c10::Symbol kind) const;
  // Inputs with a type of their own match values of that type only.
  bool isTyped(const Value* input) const { return typed_.count(input) > 0; }
  // Whether it makes a difference to exchange the first two operands of a node, if what it is matched with
  // commutes. With `named` it does where only the names of inputs differ.
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
  std::unordered_map<const Node*, bool> exchanged_; // whether more than names differs
};

// Whether the pattern's value stands for all remaining operands of the node it is passed to.
bool isRest(const Value* value);
// The name of an input, as the text or the function has it: patterns and replacements go by these.
std::string inputName(const Value* input);

// Refuses %rest anywhere but as last operand.
void checkRests(Graph& graph);

} // namespace jit_passes JIT_PASSES_API
