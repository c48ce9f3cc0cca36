// Write products in few forms, and linear layers in one.
//
//   aten::addmm(%b, %x, %wt, 1, 1)                       ->  aten::linear(%x, %w, %b)
//   aten::add(aten::matmul(%x, %wt), %b, 1)              ->  aten::linear(%x, %w, %b)
//   aten::matmul(%x, %wt) and aten::mm(%x, %wt)          ->  aten::linear(%x, %w, None)
//
// where %wt is a constant or fixed matrix (see KnownValues), such as a parameter, %w its transpose, and %b a vector
// with an element for each row of %w. For a parameter, %w is aten::t(%wt), or the operand if %wt is the result of
// aten::t.
//
// Products of two batches of matrices become matmul:
//
//   aten::einsum("b h i d, b h j d -> b h i j", [%a, %b])   ->  aten::matmul(%a, aten::transpose(%b, -2, -1))
//   aten::einsum("bij,bjd->bid", [%a, %b])                  ->  aten::matmul(%a, %b)
//   aten::einsum("bct,bcs->bts", [%a, %b])                  ->  aten::matmul(aten::transpose(%a, -2, -1), %b)
//   aten::einsum("bts,bcs->bct", [%a, %b])                  ->  aten::matmul(%b, aten::transpose(%a, -2, -1))
//
// The labels of the batch come first, in one order, in operands and result. The label in both operands alone is
// summed over; the other two stand for rows and columns. There may be no batch. Other equations stay as they are. So
// do equations whose operands may have different sizes along the summed label: einsum repeats a size of 1 there, and
// a product raises an error.
#include "facts/einsum.h"
#include "facts/known_values.h"
#include "facts/shapes.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

class Canonicalizer {
 public:
  explicit Canonicalizer(const PassContext& context) : known_(context, /*attributes_apart=*/true) {}

  bool replaceAddmm(Node* node) {
    const auto weight = matrix(inputOf(node, "mat2"));
    // by position, since another overload has a dtype in front of beta and alpha
    if (!weight || known_.fixed(node->output()) || !isBiasOf(inputOf(node, "self"), *weight) ||
        constantNumber(node->input(3)) != 1.0 || constantNumber(node->input(4)) != 1.0) {
      return false;
    }
    replaceByLinear(node, inputOf(node, "mat1"), inputOf(node, "mat2"), inputOf(node, "self"));
    return true;
  }

  bool replaceMatmul(Node* node) {
    const auto weight = matrix(node->input(1));
    if (!weight || known_.fixed(node->output())) { // a product of two parameters is no layer
      return false;
    }
    const auto& uses = node->output()->uses();
    Node* user = uses.size() == 1 ? uses[0].user : nullptr;
    const bool adds_bias = user && user->kind() == aten::add && user->inputs().size() == 3 &&
                           user->owningBlock() == node->owningBlock() &&
                           constantNumber(user, "alpha") == 1.0 &&
                           isBiasOf(user->input(1 - uses[0].offset), *weight);
    Value* bias = nullptr;
    if (adds_bias) { // at the place of the product: its operand may be written to before the sum
      bias = user->input(1 - uses[0].offset);
      hoist(bias, node);
      user->output()->replaceAllUsesWith(node->output());
      user->destroy();
    }
    replaceByLinear(node, node->input(0), node->input(1), bias);
    return true;
  }

 private:
  std::optional<at::Tensor> matrix(const Value* value) const {
    const auto found = known_.tensor(value);
    return found && found->dim() == 2 && found->is_floating_point() ? found : std::nullopt;
  }

  bool isBiasOf(const Value* value, const at::Tensor& transposed_weight) const {
    const auto bias = known_.tensor(value);
    return bias && bias->dim() == 1 && bias->size(0) == transposed_weight.size(1) &&
           bias->scalar_type() == transposed_weight.scalar_type();
  }

  static Value* transposed(Value* matrix, Node* before) {
    if (const auto constant = constantTensor(matrix)) {
      return insertConstant(before, constant->t().contiguous());
    }
    return isTranspose(matrix->node()) ? mainOperand(matrix->node())
                                       : insertValue(before, aten::t, {matrix}, before);
  }

  static void replaceByLinear(Node* node, Value* x, Value* transposed_weight, Value* bias) {
    Value* weight = transposed(transposed_weight, node);
    Value* none = bias ? bias : insertConstant(node, c10::IValue());
    replaceNode(node, insertValue(node, aten::linear, {x, weight, none}, node));
  }

  KnownValues known_;
};

bool canonicalizeLinear(PassContext& context) {
  static const auto kinds = symbols({"aten::addmm", "aten::mm", "aten::matmul"});
  static const auto addmm = symbol("aten::addmm");
  // Collected first, since replacing a product may destroy its user.
  const auto products =
      nodesWhere(*context.graph(), [&](const Node* node) { return kinds.count(node->kind()) > 0; });
  if (products.empty()) {
    return false;
  }
  bool changed = false;
  Canonicalizer canonicalizer(context);
  for (Node* node : products) {
    changed |= node->kind() == addmm ? canonicalizer.replaceAddmm(node) : canonicalizer.replaceMatmul(node);
  }
  return changed;
}

// A product of matrices, with the operands in this order or exchanged, each as it is or transposed.
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

// Whether both operands have equal sizes along the summed label for certain. einsum repeats a size of 1, which a
// product does not.
bool fits(const Shapes& shapes, const Node* list, const Product& product) {
  const Extent left = shapes.ofAxis(list->input(product.swapped), product.left_transposed ? -2 : -1);
  return left == shapes.ofAxis(list->input(!product.swapped), product.right_transposed ? -1 : -2);
}

bool canonicalizeEinsum(PassContext& context) {
  std::vector<std::pair<Node*, Product>> products;
  for (Node* node :
       nodesWhere(*context.graph(), [](const Node* node) { return einsumLabels(node).has_value(); })) {
    if (const auto product = productOf(*einsumLabels(node))) {
      products.emplace_back(node, *product);
    }
  }
  if (products.empty()) { // finding shapes takes time
    return false;
  }
  const Shapes shapes(context);
  std::erase_if(products, [&](const auto& found) {
    return !fits(shapes, inputOf(found.first, "tensors")->node(), found.second);
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

bool canonicalizeProducts(PassContext& context) {
  const bool linear = canonicalizeLinear(context);
  return canonicalizeEinsum(context) || linear;
}

const RegisterPass canonicalize_products_pass{
    "canonicalize_products", "Write products by constants as linear, and einsum of two batches as matmul.",
    canonicalizeProducts, needs("inlined")};

} // namespace
} // namespace jit_passes
