// Equations of aten::einsum for two operands.
#pragma once

#include "graph/graph.h"

namespace jit_passes {

// The labels of the axes of both operands and of the result.
struct EinsumLabels {
  std::string a, b, result;
};

// Nothing unless the node is an einsum of two tensors whose equation names all axes and nothing else, with no label
// twice in one tensor.
inline std::optional<EinsumLabels> einsumLabels(const Node* node) {
  static const auto einsum = symbol("aten::einsum");
  const auto given = node->kind() == einsum ? constantOf(node->input(0)) : std::nullopt;
  const Node* list = given ? node->input(1)->node() : nullptr;
  if (!given || !given->isString() || list->kind() != prim::ListConstruct || list->inputs().size() != 2 ||
      list->output()->uses().size() != 1) {
    return std::nullopt;
  }
  std::string equation = given->toStringRef();
  equation.erase(std::remove(equation.begin(), equation.end(), ' '), equation.end());
  const size_t comma = equation.find(','), arrow = equation.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma > arrow) {
    return std::nullopt;
  }
  const EinsumLabels labels{
      equation.substr(0, comma), equation.substr(comma + 1, arrow - comma - 1), equation.substr(arrow + 2)};
  const auto named = [](const std::string& text) {
    const std::set<char> letters(text.begin(), text.end());
    return letters.size() == text.size() &&
           std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalpha(c) != 0; });
  };
  return named(labels.a) && named(labels.b) && named(labels.result) ? std::optional(labels) : std::nullopt;
}

} // namespace jit_passes
