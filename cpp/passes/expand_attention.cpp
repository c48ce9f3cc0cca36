// Write attention as the products and the softmax that it is made of, for targets that compute these on integers.
//
//   %y = aten::scaled_dot_product_attention(%q, %k, %v, None, 0., False, None, False)
//     ->
//   %t = aten::transpose(%k, -2, -1)
//   %p = aten::matmul(%q, %t)
//   %s = aten::mul(%p, 1 / sqrt(features of %q))
//   %w = aten::softmax(%s, -1, None)
//   %y = aten::matmul(%w, %v)
//
// PyTorch's formula multiplies both operands by the root of the scale. Here the scale is behind the product, where it
// only changes the step of integers. In float the fused operator is faster, so this is no part of the canonical form.
//
// Masks stay: they hide scores by adding minus infinity, which has no code.
#include "core/registry.h"
#include "core/shapes.h"

namespace jit_passes {
namespace {

const auto attention_kind = symbol("aten::scaled_dot_product_attention");

// Operands behind query, key and value.
enum : size_t { kMask = 3, kDropout, kCausal, kScale, kGrouped };

bool isFalse(const Value* value) {
  const auto constant = constantOf(value);
  return constant && constant->isBool() && !constant->toBool();
}

std::optional<double> scaleOf(const Shapes& shapes, const Node* node) {
  if (!isNone(node->input(kScale))) {
    return constantNumber(node->input(kScale));
  }
  const Extent features = shapes.ofAxis(node->input(0), -1);
  return features.isNumber() && features.number > 0 ? std::optional(1 / std::sqrt(double(features.number)))
                                                    : std::nullopt;
}

// Why the formula is not for it, or nothing.
std::optional<std::string> unlikeProducts(const Shapes& shapes, const Node* node) {
  if (std::ranges::any_of(node->inputs().slice(0, 3), [&](auto* x) { return shapes.isWritten(x); }) ||
      shapes.isWritten(node->output())) {
    return "something writes to its operands or its result";
  }
  if (!isNone(node->input(kMask))) {
    return "it has a mask, and minus infinity has no code";
  }
  if (!isFalse(node->input(kCausal))) {
    return "it is causal, or may be, and minus infinity has no code";
  }
  if (constantNumber(node->input(kDropout)) != 0.0) {
    return "it drops weights, or may";
  }
  if (node->inputs().size() > kGrouped && !isFalse(node->input(kGrouped))) {
    return "several of its queries share a key, or may";
  }
  if (!scaleOf(shapes, node)) {
    return "its scale is computed by the model, or the number of features that it follows from: give one of "
           "them "
           "as a number";
  }
  return std::nullopt;
}

void expand(Node* node, double scale) {
  const auto insert = [&](const char* kind, const std::vector<Value*>& operands) {
    return insertValue(node, symbol(kind), operands, node);
  };
  const auto number = [&](int64_t axis) { return insertConstant(node, axis); };
  Value* transposed = insert("aten::transpose", {node->input(1), number(-2), number(-1)});
  Value* scores = insert("aten::matmul", {node->input(0), transposed});
  scores = insert("aten::mul", {scores, insertConstant(node, scale)});
  Value* weights = insert("aten::softmax", {scores, number(-1), insertConstant(node, c10::IValue())});
  replaceNode(node, insert("aten::matmul", {weights, node->input(2)}));
}

bool expandAttention(PassContext& context) {
  const auto found = nodesWhere(*context.graph(), [](auto* node) { return node->kind() == attention_kind; });
  if (found.empty()) {
    return false;
  }
  const Shapes shapes(context);
  std::vector<std::pair<Node*, double>> expanded; // all of them before the first is replaced
  for (Node* node : found) {
    if (const auto reason = unlikeProducts(shapes, node)) {
      context.remark(node, "it is not written as products: " + *reason);
    } else {
      expanded.emplace_back(node, *scaleOf(shapes, node));
    }
  }
  for (const auto& [node, scale] : expanded) {
    expand(node, scale);
  }
  return !expanded.empty();
}

const RegisterPass expand_attention_pass{
    "expand_attention", "Write attention as products and softmax, which can be computed on integers.",
    expandAttention, needs("inlined")};

} // namespace
} // namespace jit_passes
