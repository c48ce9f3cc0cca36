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
// A constant mask is added to the scores, one of bool as 0 and minus infinity; so is the mask of causal attention, made
// for the numbers of queries and keys: %m = aten::triu(aten::full([queries, keys], -inf), 1).
//
// PyTorch's formula multiplies both operands by the root of the scale. Here the scale is behind the product, where it
// only changes the step of integers. In float the fused operator is faster, so this is no part of the canonical form.
#include "core/registry.h"
#include "core/shapes.h"

namespace jit_passes {
namespace {

const auto attention_kind = symbol("aten::scaled_dot_product_attention");

// Operands behind query, key and value.
enum : size_t { kMask = 3, kDropout, kCausal, kScale, kGrouped };

std::optional<bool> constantBool(const Value* value) {
  const auto constant = constantOf(value);
  return constant && constant->isBool() ? std::optional(constant->toBool()) : std::nullopt;
}

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// What attention is made of, and what the first edit would take away.
struct Expansion {
  Node* node;
  double scale;
  at::Tensor mask = {};           // that is added
  Extent queries = {}, keys = {}; // where it is causal
  bool causal = false;
};

std::optional<double> scaleOf(const Shapes& shapes, const Node* node) {
  if (!isNone(node->input(kScale))) {
    return constantNumber(node->input(kScale));
  }
  const Extent features = shapes.ofAxis(node->input(0), -1);
  return features.isNumber() && features.number > 0 ? std::optional(1 / std::sqrt(double(features.number)))
                                                    : std::nullopt;
}

// Why a mask cannot be added to scores, or nothing.
std::optional<std::string> unlikeSum(const std::optional<at::Tensor>& mask, const Node* node) {
  if (!mask) {
    return "its mask is computed by the model: write the formula, and add the mask to the scores";
  }
  if (constantBool(node->input(kCausal)) != false) {
    return "it has a mask and is causal, or may be";
  }
  if (mask->scalar_type() != at::kBool && mask->scalar_type() != at::kFloat) {
    return "its mask is neither bool nor float32";
  }
  const at::Tensor hidden = mask->scalar_type() == at::kBool ? mask->logical_not() : mask->eq(kHidden);
  if (mask->dim() == 0 || hidden.all(-1).any().item<bool>()) {
    return "its mask hides all keys of a query, whose result is 0 in PyTorch, and NaN by the formula";
  }
  return std::nullopt;
}

// Why the formula is not for it, or nothing.
std::optional<std::string> unlikeProducts(const KnownValues& known, const Shapes& shapes, const Node* node) {
  if (std::ranges::any_of(node->inputs().slice(0, 3), [&](auto* x) { return shapes.isWritten(x); }) ||
      shapes.isWritten(node->output())) {
    return "something writes to its operands or its result";
  }
  if (!isNone(node->input(kMask))) {
    if (const auto reason = unlikeSum(known.tensor(node->input(kMask)), node)) {
      return reason;
    }
  } else if (!constantBool(node->input(kCausal))) {
    return "it may be causal";
  }
  if (constantNumber(node->input(kDropout)) != 0.0) {
    return "it drops weights, or may";
  }
  if (node->inputs().size() > kGrouped && constantBool(node->input(kGrouped)) != false) {
    return "several of its queries share a key, or may";
  }
  if (!scaleOf(shapes, node)) {
    return "its scale is computed by the model, or the number of features that it follows from: give one of "
           "them "
           "as a number";
  }
  return std::nullopt;
}

Value* insertSize(Node* before, const Extent& extent) {
  if (extent.isNumber()) {
    return insertConstant(before, extent.number);
  }
  auto* value = const_cast<Value*>(extent.value);
  return isTensor(value) ? insertValue(
                               before, symbol("aten::size"), {value, insertConstant(before, extent.number)},
                               before, c10::IntType::get())
                         : value;
}

// Minus infinity where a key comes behind the query.
Value* insertCausalMask(const Expansion& attention) {
  Node* node = attention.node;
  if (attention.queries.isNumber() && attention.keys.isNumber()) {
    return insertConstant(
        node, at::full({attention.queries.number, attention.keys.number}, kHidden, at::kFloat).triu(1));
  }
  Value* none = insertConstant(node, c10::IValue());
  Value* sizes = insertValue(
      node, c10::prim::ListConstruct, {insertSize(node, attention.queries), insertSize(node, attention.keys)},
      node, c10::ListType::ofInts());
  Value* dtype = insertConstant(node, static_cast<int64_t>(at::kFloat));
  Value* hidden = insertConstant(node, static_cast<double>(kHidden));
  Value* full = insertValue(node, symbol("aten::full"), {sizes, hidden, dtype, none, none, none}, node);
  return insertValue(node, symbol("aten::triu"), {full, insertConstant(node, int64_t{1})}, node);
}

void expand(const Expansion& attention) {
  Node* node = attention.node;
  const auto insert = [&](const char* kind, const std::vector<Value*>& operands) {
    return insertValue(node, symbol(kind), operands, node);
  };
  const auto number = [&](int64_t axis) { return insertConstant(node, axis); };
  Value* transposed = insert("aten::transpose", {node->input(1), number(-2), number(-1)});
  Value* scores = insert("aten::matmul", {node->input(0), transposed});
  scores = insert("aten::mul", {scores, insertConstant(node, attention.scale)});
  if (attention.causal || attention.mask.defined()) {
    Value* mask = attention.causal ? insertCausalMask(attention) : insertConstant(node, attention.mask);
    scores = insert("aten::add", {scores, mask, number(1)});
  }
  Value* weights = insert("aten::softmax", {scores, number(-1), insertConstant(node, c10::IValue())});
  replaceNode(node, insert("aten::matmul", {weights, node->input(2)}));
}

bool expandAttention(PassContext& context) {
  const auto found = nodesWhere(*context.graph(), [](auto* node) { return node->kind() == attention_kind; });
  if (found.empty()) {
    return false;
  }
  const KnownValues known(context);
  const Shapes shapes(context);
  std::vector<Expansion> expanded; // all of them before the first is replaced
  for (Node* node : found) {
    if (const auto reason = unlikeProducts(known, shapes, node)) {
      context.remark(node, "it is not written as products: " + *reason);
      continue;
    }
    Expansion& attention = expanded.emplace_back(Expansion{node, *scaleOf(shapes, node)});
    if (const auto mask = known.tensor(node->input(kMask))) {
      const at::Tensor zeros = at::zeros(mask->sizes(), at::kFloat);
      attention.mask = mask->scalar_type() == at::kBool ? zeros.masked_fill(mask->logical_not(), kHidden)
                                                        : mask->detach().clone();
    } else if (*constantBool(node->input(kCausal))) {
      attention.causal = true;
      attention.queries = shapes.ofAxis(node->input(0), -2);
      attention.keys = shapes.ofAxis(node->input(1), -2);
    }
  }
  std::ranges::for_each(expanded, expand);
  return !expanded.empty();
}

const RegisterPass expand_attention_pass{
    "expand_attention", "Write attention as products and softmax, which can be computed on integers.",
    expandAttention, needs("inlined")};

} // namespace
} // namespace jit_passes
