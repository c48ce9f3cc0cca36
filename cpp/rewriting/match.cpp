#include "match.h"

#include "graph/operators.h"

#include <ranges>

namespace jit_passes {

std::vector<Value*> Match::operandsOf(const Value* input) const {
  if (const auto found = rests.find(input); found != rests.end()) {
    return found->second;
  }
  const auto found = values.find(input);
  return found == values.end() ? std::vector<Value*>() : std::vector<Value*>{found->second};
}

bool Match::isExchanged(const Pattern& pattern) const {
  return std::ranges::any_of(pattern.nodes(), [&](const Node* wanted) {
    if (!pattern.mayExchange(wanted, true)) {
      return false;
    }
    const Node* node = nodes.at(wanted);
    const Value* first = values.at(wanted->input(0));
    return first != node->input(0) && first == node->input(1);
  });
}

Node* Match::principal(const Pattern& pattern) const {
  Node* principal = nodes.at(pattern.anchor());
  for (const Node* wanted : pattern.nodes() | std::views::reverse) {
    Node* node = nodes.at(wanted);
    const bool language = node->kind().is_prim(); // makes lists or takes them apart
    if (!isQuantization(node) && (!language || principal->kind().is_prim() || isQuantization(principal))) {
      principal = node;
    }
  }
  return principal;
}

} // namespace jit_passes
