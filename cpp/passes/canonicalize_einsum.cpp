// Bring products of two batches of matrices to one spelling.
//
//   aten::einsum("b h i d, b h j d -> b h i j", [%a, %b])   ->  aten::matmul(%a, aten::transpose(%b, -2, -1))
//   aten::einsum("bij,bjd->bid", [%a, %b])                  ->  aten::matmul(%a, %b)
//
// where the labels of a batch come first, in the same order, in operands and result; one label is summed over, and the
// others are those of rows and columns. Without a batch too. Other equations stay as they are. Along the summed label,
// where einsum would repeat a size of 1, the product raises an error.
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

// Labels of the operands and of the result. Nothing where an equation does not name all of them once each, and nothing
// else.
struct Labels {
  std::string a, b, result;
};

std::optional<Labels> labelsOf(std::string equation) {
  equation.erase(std::remove(equation.begin(), equation.end(), ' '), equation.end());
  const size_t comma = equation.find(','), arrow = equation.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma > arrow) {
    return std::nullopt;
  }
  const Labels labels{
      equation.substr(0, comma), equation.substr(comma + 1, arrow - comma - 1), equation.substr(arrow + 2)};
  const auto named = [](const std::string& text) {
    const std::set<char> letters(text.begin(), text.end());
    return letters.size() == text.size() &&
           std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalpha(c) != 0; });
  };
  return named(labels.a) && named(labels.b) && named(labels.result) ? std::optional(labels) : std::nullopt;
}

// Whether the rows of the right operand are the columns of the product; nothing where it is no product of matrices.
std::optional<bool> isTransposed(const Labels& labels) {
  const auto& [a, b, result] = labels;
  if (a.size() < 2 || a.size() != b.size() || a.size() != result.size()) {
    return std::nullopt;
  }
  const size_t batch = a.size() - 2;
  const std::string common = a.substr(0, batch);
  const char row = a[batch], summed = a[batch + 1], column = result[batch + 1];
  const bool fits = b.substr(0, batch) == common && result.substr(0, batch) == common &&
                    result[batch] == row && column != row && column != summed && row != summed;
  const std::string matrix = b.substr(batch);
  if (fits && matrix == std::string{summed, column}) {
    return false;
  }
  return fits && matrix == std::string{column, summed} ? std::optional(true) : std::nullopt;
}

Value* productOf(Node* node) {
  const auto equation = constantOf(node->input(0));
  const Node* list = node->input(1)->node();
  if (!equation || !equation->isString() || list->kind() != prim::ListConstruct ||
      list->inputs().size() != 2 || list->output()->uses().size() != 1) {
    return nullptr;
  }
  const auto labels = labelsOf(equation->toStringRef());
  const auto transposed = labels ? isTransposed(*labels) : std::nullopt;
  if (!transposed) {
    return nullptr;
  }
  Value *a = list->input(0), *b = list->input(1);
  if (*transposed) {
    b = insertValue(
        node, aten::transpose, {b, insertConstant(node, int64_t{-2}), insertConstant(node, int64_t{-1})},
        node);
  }
  return insertValue(node, aten::matmul, {a, b}, node);
}

bool canonicalizeEinsum(PassContext& context) {
  static const auto einsum = symbol("aten::einsum");
  return replaceNodes(
      *context.graph(), [](Node* node) { return node->kind() == einsum ? productOf(node) : nullptr; });
}

const RegisterPass canonicalize_einsum_pass{
    "canonicalize_einsum", "Turn einsum of two batches of matrices into matmul.", canonicalizeEinsum,
    needs("inlined")};

} // namespace
} // namespace jit_passes
