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
// A mask is added to the scores, one of bool as 0 and minus infinity: aten::where(%mask, 0, -inf). The dtype of one that
// the model computes is known as it runs. A query may have no key then, which gives zeros: its shares are those of
// aten::_safe_softmax. The mask of causal attention is made for the numbers of queries and keys:
// %m = aten::triu(aten::full([queries, keys], -inf), 1).
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

// The operands of attention, with facts that the first edit would take away.
struct Expansion {
  Node* node;
  double scale;
  std::optional<at::Tensor> mask = {}; // a constant
  Extent queries = {}, keys = {};      // where it is causal
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
  if (!isTensor(node->input(kMask))) {
    return "its mask may be None";
  }
  if (constantBool(node->input(kCausal)) != false) {
    return "it has a mask and is causal, or may be";
  }
  const bool other = mask && mask->scalar_type() != at::kBool && mask->scalar_type() != at::kFloat;
  return other ? std::optional<std::string>("its mask is neither bool nor float32") : std::nullopt;
}

// Why the formula is not for it, or nothing.
std::optional<std::string> unlikeProducts(const KnownValues& known, const Shapes& shapes, const Node* node) {
  if (std::ranges::any_of(node->inputs().slice(0, 4), [&](auto* x) { return shapes.isWritten(x); }) ||
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
  if (!isTensor(value)) {
    return value;
  }
  const auto insert = [&](const char* kind, at::ArrayRef<Value*> operands) {
    return insertValue(before, symbol(kind), operands, before, c10::IntType::get());
  };
  return extent.number == Extent::kHeld
             ? insert("aten::Int", {value})
             : insert("aten::size", {value, insertConstant(before, extent.number)});
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

// The operand that a constant mask adds to scores.
Value* insertMask(Node* node, const at::Tensor& mask) {
  return insertConstant(
      node, mask.scalar_type() == at::kBool
                ? at::zeros(mask.sizes(), at::kFloat).masked_fill(mask.logical_not(), kHidden)
                : mask.detach().clone());
}

// The same of one that the model computes, right behind it: all layers that read it share the sum's operand.
Value* insertComputedMask(Value* mask, const Node* like) {
  Node* maker = mask->node();
  Node* next = maker->kind() == prim::Param ? *maker->owningBlock()->nodes().begin() : maker->next();
  Value* dtype = insertValue(next, prim::dtype, {mask}, like, c10::IntType::get());
  Value* boolean = insertConstant(next, static_cast<int64_t>(at::kBool));
  Value* hides = insertValue(next, aten::eq, {dtype, boolean}, like, c10::BoolType::get());
  Node* branch = insertNode(next, prim::If, {hides}, like);
  Node* end = branch->addBlock()->return_node();
  Value* zero = insertConstant(end, 0.0);
  Value* hidden = insertConstant(end, static_cast<double>(kHidden));
  end->owningBlock()->registerOutput(insertValue(end, aten::where, {mask, zero, hidden}, like));
  branch->addBlock()->registerOutput(mask);
  return branch->output();
}

void expand(const Expansion& attention, std::unordered_map<const Value*, Value*>& masks) {
  Node* node = attention.node;
  const auto insert = [&](const char* kind, const std::vector<Value*>& operands) {
    return insertValue(node, symbol(kind), operands, node);
  };
  const auto number = [&](int64_t axis) { return insertConstant(node, axis); };
  Value* transposed = insert("aten::transpose", {node->input(1), number(-2), number(-1)});
  Value* scores = insert("aten::matmul", {node->input(0), transposed});
  scores = insert("aten::mul", {scores, insertConstant(node, attention.scale)});
  Value* mask = node->input(kMask);
  const bool masked = !isNone(mask);
  if (attention.causal || masked) {
    Value*& computed = masks[mask];
    if (masked && !attention.mask && computed == nullptr) {
      computed = insertComputedMask(mask, node);
    }
    mask = attention.causal ? insertCausalMask(attention)
           : attention.mask ? insertMask(node, *attention.mask)
                            : computed;
    scores = insert("aten::add", {scores, mask, number(1)});
  }
  const char* softmax = masked ? "aten::_safe_softmax" : "aten::softmax";
  Value* weights = insert(softmax, {scores, number(-1), insertConstant(node, c10::IValue())});
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
    attention.mask = known.tensor(node->input(kMask));
    if (*constantBool(node->input(kCausal))) {
      attention.causal = true;
      attention.queries = shapes.ofAxis(node->input(0), -2);
      attention.keys = shapes.ofAxis(node->input(1), -2);
    }
  }
  std::unordered_map<const Value*, Value*> masks; // that the model computes
  for (const Expansion& attention : expanded) {
    expand(attention, masks);
  }
  return !expanded.empty();
}

const RegisterPass expand_attention_pass{
    "expand_attention", "Write attention as products and softmax, which can be computed on integers.",
    expandAttention, needs("inlined")};

} // namespace
} // namespace jit_passes
