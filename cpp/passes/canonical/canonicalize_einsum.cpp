// Bring products of two batches of matrices to one spelling.
//
//   aten::einsum("b h i d, b h j d -> b h i j", [%a, %b])   ->  aten::matmul(%a, aten::transpose(%b, -2, -1))
//   aten::einsum("bij,bjd->bid", [%a, %b])                  ->  aten::matmul(%a, %b)
//   aten::einsum("bct,bcs->bts", [%a, %b])                  ->  aten::matmul(aten::transpose(%a, -2, -1), %b)
//   aten::einsum("bts,bcs->bct", [%a, %b])                  ->  aten::matmul(%b, aten::transpose(%a, -2, -1))
//
// where the labels of a batch come first, in the same order, in operands and result; one label is summed over, and the
// others are those of rows and columns. Without a batch too. Other equations stay as they are, and so do those of which
// it is not known that both operands have one size along the summed label: einsum repeats a size of 1 there, and a
// product raises an error.
#include "facts/einsum.h"
#include "facts/shapes.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

// A product of matrices, of operands in this order or in the other, each as it is or transposed.
struct Product {
  bool swapped, left_transposed, right_transposed;
};

std::optional<Product> productOf(const EinsumLabels& labels) {
  const auto& result = labels.result;
  if (result.size() < 2 || labels.a.size() != result.size() || labels.b.size() != result.size()) {
    return std::nullopt;
  }
  const size_t batch = result.size() - 2;
  const std::string common = result.substr(0, batch);
  if (labels.a.substr(0, batch) != common || labels.b.substr(0, batch) != common) {
    return std::nullopt;
  }
  for (const bool swapped : {false, true}) {
    const std::string left = (swapped ? labels.b : labels.a).substr(batch);
    const std::string right = (swapped ? labels.a : labels.b).substr(batch);
    const char row = result[batch], column = result[batch + 1];
    for (const auto& [summed, left_transposed] : {std::pair(left[1], false), {left[0], true}}) {
      const bool rows = left == (left_transposed ? std::string{summed, row} : std::string{row, summed});
      const bool plain = right == std::string{summed, column},
                 transposed = right == std::string{column, summed};
      if (rows && (plain || transposed) && row != column && summed != row && summed != column) {
        return Product{swapped, left_transposed, transposed};
      }
    }
  }
  return std::nullopt;
}

// Whether the sizes along the label that is summed over are known to be one: einsum repeats a size of 1, and a product
// does not.
bool fits(const Shapes& shapes, const Node* list, const Product& product) {
  const Extent left = shapes.ofAxis(list->input(product.swapped), product.left_transposed ? -2 : -1);
  return left == shapes.ofAxis(list->input(!product.swapped), product.right_transposed ? -1 : -2);
}

bool canonicalizeEinsum(PassContext& context) {
  const Shapes shapes(context);
  std::vector<std::pair<Node*, Product>> products;
  forEachNode(*context.graph(), [&](Node* node) {
    const auto labels = einsumLabels(node);
    const auto product = labels ? productOf(*labels) : std::nullopt;
    if (product && fits(shapes, inputOf(node, "tensors")->node(), *product)) {
      products.emplace_back(node, *product);
    }
  });
  for (const auto& [node, product] : products) {
    const Node* list = inputOf(node, "tensors")->node();
    const auto matrix = [&, before = node](Value* operand, bool transposed) {
      const auto number = [&](int64_t value) { return insertConstant(before, value); };
      return transposed ? insertValue(before, aten::transpose, {operand, number(-2), number(-1)}, before)
                        : operand;
    };
    Value* a = matrix(const_cast<Node*>(list)->input(product.swapped), product.left_transposed);
    Value* b = matrix(const_cast<Node*>(list)->input(!product.swapped), product.right_transposed);
    replaceNode(node, insertValue(node, aten::matmul, {a, b}, node));
  }
  return !products.empty();
}

const RegisterPass canonicalize_einsum_pass{
    "canonicalize_einsum", "Turn einsum of two batches of matrices into matmul.", canonicalizeEinsum,
    needs("inlined")};

} // namespace
} // namespace jit_passes
