// Bring products of two batches of matrices to one spelling.
//
//   aten::einsum("b h i d, b h j d -> b h i j", [%a, %b])   ->  aten::matmul(%a, aten::transpose(%b, -2, -1))
//   aten::einsum("bij,bjd->bid", [%a, %b])                  ->  aten::matmul(%a, %b)
//
// where the labels of a batch come first, in the same order, in operands and result; one label is summed over, and the
// others are those of rows and columns. Without a batch too. Other equations stay as they are, and so do those of which
// it is not known that both operands have one size along the summed label: einsum repeats a size of 1 there, and a
// product raises an error.
#include "core/einsum.h"
#include "core/registry.h"
#include "core/shapes.h"

namespace jit_passes {
namespace {

// A product of matrices, whose right operand is as it is or transposed: its rows are the columns of the product then.
enum class Product { kNone, kPlain, kTransposed };

Product productOf(const EinsumLabels& labels) {
  const auto& [a, b, result] = labels;
  if (a.size() < 2 || a.size() != b.size() || a.size() != result.size()) {
    return Product::kNone;
  }
  const size_t batch = a.size() - 2;
  const std::string common = a.substr(0, batch);
  const char row = a[batch], summed = a[batch + 1], column = result[batch + 1];
  const bool fits = b.substr(0, batch) == common && result.substr(0, batch) == common &&
                    result[batch] == row && column != row && column != summed && row != summed;
  const std::string matrix = b.substr(batch);
  if (fits && matrix == std::string{summed, column}) {
    return Product::kPlain;
  }
  return fits && matrix == std::string{column, summed} ? Product::kTransposed : Product::kNone;
}

// Whether the sizes along the label that is summed over are known to be one: einsum repeats a size of 1, and a product
// does not.
bool fits(const Shapes& shapes, const Node* list, const EinsumLabels& labels, bool transposed) {
  const auto rank = static_cast<int64_t>(labels.a.size());
  return shapes.ofAxis(list->input(0), rank - 1) ==
         shapes.ofAxis(list->input(1), transposed ? rank - 1 : rank - 2);
}

bool canonicalizeEinsum(PassContext& context) {
  const Shapes shapes(context);
  std::vector<std::pair<Node*, bool>> products; // and whether the right operand is to be transposed
  forEachNode(*context.graph(), [&](Node* node) {
    const auto labels = einsumLabels(node);
    const Product product = labels ? productOf(*labels) : Product::kNone;
    const bool transposed = product == Product::kTransposed;
    if (product != Product::kNone && fits(shapes, node->input(1)->node(), *labels, transposed)) {
      products.emplace_back(node, transposed);
    }
  });
  for (const auto& [node, transposed] : products) {
    const Node* list = node->input(1)->node();
    const auto number = [before = node](int64_t value) { return insertConstant(before, value); };
    Value *a = list->input(0), *b = list->input(1);
    b = transposed ? insertValue(node, aten::transpose, {b, number(-2), number(-1)}, node) : b;
    replaceNode(node, insertValue(node, aten::matmul, {a, b}, node));
  }
  return !products.empty();
}

const RegisterPass canonicalize_einsum_pass{
    "canonicalize_einsum", "Turn einsum of two batches of matrices into matmul.", canonicalizeEinsum,
    needs("inlined")};

} // namespace
} // namespace jit_passes
