// Replace attention by its products and its softmax, for targets that compute these on integers.
//
//   %y = aten::scaled_dot_product_attention(%q, %k, %v, None, 0., False, None, False)
//     ->
//   %t = aten::transpose(%k, -2, -1)
//   %p = aten::matmul(%q, %t)
//   %s = aten::mul(%p, 1 / sqrt(features of %q))
//   %w = aten::softmax(%s, -1, None)
//   %y = aten::matmul(%w, %v)
//
// A mask is added to the scores. A mask of bools becomes 0 and minus infinity: aten::where(%mask, 0, -inf). The
// dtype of a computed mask is known at run time only, unless it is float32 for certain. With a mask, a query may
// have no key at all, which gives zeros: aten::_safe_softmax replaces softmax. The mask of causal attention depends
// on the numbers of queries and keys: %m = aten::triu(aten::full([queries, keys], -inf), 1). If a model decides at
// run time whether there is a mask, or whether it is causal, 0 is added if there is none.
//
// If the number of features is known at run time only, the scale is aten::pow(size of %q, -0.5).
//
// If several heads of queries share a head of keys, the axis of query heads is split into key heads and the queries
// of each, so the product broadcasts and no key is repeated:
//
//   %l = aten::unflatten(%q, -3, [heads of %k, -1])
//   %r = aten::unflatten(%t, -3, [-1, 1])
//   %p = aten::matmul(%l, %r)
//
// PyTorch's formula multiplies both operands by the root of the scale. Here the scale comes after the product, where
// it only changes the scale of integers. In float the fused operator is faster, so this is no part of the canonical
// form.
#include "facts/dtypes.h"
#include "facts/shapes.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

const auto attention_kind = symbol("aten::scaled_dot_product_attention");

std::optional<bool> constantBool(const Node* node, std::string_view name) {
  const auto constant = constantOf(node, name);
  return constant && constant->isBool() ? std::optional(constant->toBool()) : std::nullopt;
}

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// The operands of attention, with facts that must be found before the first edit.
struct Expansion {
  Node* node;
  std::optional<double> scale;                   // nothing if it depends on an unknown size
  std::optional<at::Tensor> mask = {};           // a constant
  bool floats = false;                           // whether a computed mask is float32 for certain
  std::optional<Extent> queries = {}, keys = {}; // if it may be causal
  std::optional<bool> causal = false;            // nothing if the model decides
  int64_t key_heads = 0, value_heads = 0;        // if queries share heads
};

std::optional<double> scaleOf(const Shapes& shapes, const Node* node) {
  if (!isNone(node, "scale")) {
    return constantNumber(node, "scale");
  }
  const auto features = shapes.ofAxis(inputOf(node, "query"), -1).number();
  return features.value_or(0) > 0 ? std::optional(1 / std::sqrt(double(*features))) : std::nullopt;
}

bool mayGroup(const Node* node) {
  return node->schema().argumentIndexWithName("enable_gqa") && constantBool(node, "enable_gqa") != false;
}

bool isGrouped(const Node* node) { return mayGroup(node) && constantBool(node, "enable_gqa") == true; }

// The number of heads of the key or the value, if queries share heads.
std::optional<int64_t> headsOf(const Shapes& shapes, const Node* node, std::string_view name) {
  const auto heads = shapes.ofAxis(inputOf(node, name), -3).number();
  return heads.value_or(0) > 0 ? heads : std::nullopt;
}

// Why a mask cannot be added to scores, or nothing.
std::optional<std::string> unlikeSum(const std::optional<at::Tensor>& mask, const Node* node) {
  const auto causal = constantBool(node, "is_causal");
  if (causal == true || (!causal && isTensor(inputOf(node, "attn_mask")))) {
    return "it has a mask and is causal, or may be, which PyTorch refuses";
  }
  const bool other = mask && mask->scalar_type() != at::kBool && mask->scalar_type() != at::kFloat;
  return other ? std::optional<std::string>("its mask is neither bool nor float32") : std::nullopt;
}

// Why the formula does not apply to the node, or nothing.
std::optional<std::string> unlikeProducts(const KnownValues& known, const Shapes& shapes, const Node* node) {
  if (std::ranges::any_of(node->inputs().slice(0, 4), [&](auto* x) { return shapes.isWritten(x); }) ||
      shapes.isWritten(node->output())) {
    return "something writes to its operands or its result";
  }
  if (!isNone(node, "attn_mask")) {
    if (const auto reason = unlikeSum(known.tensor(inputOf(node, "attn_mask")), node)) {
      return reason;
    }
  }
  if (constantNumber(node, "dropout_p") != 0.0) {
    return "it drops weights, or may";
  }
  if (mayGroup(node) &&
      (!isGrouped(node) || !headsOf(shapes, node, "key") || !headsOf(shapes, node, "value"))) {
    return "several of its queries share a key, or may, and the graph does not say how many keys there are";
  }
  if (!scaleOf(shapes, node) && !isNone(node, "scale")) {
    return "its scale is computed by the model: give it as a number";
  }
  return std::nullopt;
}

// Values that have been made so far.
struct Made {
  std::unordered_map<const Value*, Value*> masks;   // for each computed mask
  std::unordered_map<const Value*, Value*> results; // of replaced attention, for their sizes
};

Value* insertSize(Node* before, const Extent& extent, const Made& made) {
  if (const auto number = extent.number()) {
    return insertConstant(before, *number);
  }
  const auto insert = [&](const char* kind, at::ArrayRef<Value*> operands) {
    return insertValue(before, symbol(kind), operands, before, c10::IntType::get());
  };
  if (auto* integer = const_cast<Value*>(extent.integer())) {
    return isTensor(integer) ? insert("aten::Int", {integer}) : integer;
  }
  const auto& [tensor, axis] = *extent.axis();
  const auto gone = made.results.find(tensor);
  auto* of = gone == made.results.end() ? const_cast<Value*>(tensor) : gone->second;
  return insert("aten::size", {of, insertConstant(before, axis)});
}

// Minus infinity where the key comes after the query.
Value* insertCausalMask(const Expansion& attention, Node* node, const Made& made) {
  const auto queries = attention.queries->number(), keys = attention.keys->number();
  if (queries && keys) {
    return insertConstant(node, at::full({*queries, *keys}, kHidden, at::kFloat).triu(1));
  }
  Value* none = insertConstant(node, c10::IValue());
  Value* sizes = insertValue(
      node, c10::prim::ListConstruct,
      {insertSize(node, *attention.queries, made), insertSize(node, *attention.keys, made)}, node,
      c10::ListType::ofInts());
  Value* dtype = insertConstant(node, static_cast<int64_t>(at::kFloat));
  Value* hidden = insertConstant(node, static_cast<double>(kHidden));
  Value* full = insertValue(node, symbol("aten::full"), {sizes, hidden, dtype, none, none, none}, node);
  return insertValue(node, symbol("aten::triu"), {full, insertConstant(node, int64_t{1})}, node);
}

// The addend of scores for a constant mask.
Value* insertMask(Node* node, const at::Tensor& mask) {
  return insertConstant(
      node, mask.scalar_type() == at::kBool
                ? at::zeros(mask.sizes(), at::kFloat).masked_fill(mask.logical_not(), kHidden)
                : mask.detach().clone());
}

// The addend of scores for a computed mask, in front of `next`.
Value* insertComputedMask(Value* mask, Node* next, const Node* like) {
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

// Zero, as the addend without a mask.
Value* insertNoMask(Node* next) { return insertConstant(next, at::zeros({1, 1}, at::kFloat)); }

// The addend for a computed mask, which may be None. The addend is made right after the mask, so that all layers
// with this mask share it.
Value* insertSharedMask(Value* mask, const Node* like) {
  Node* maker = mask->node();
  Node* next = maker->kind() == prim::Param ? *maker->owningBlock()->nodes().begin() : maker->next();
  if (isTensor(mask)) {
    return insertComputedMask(mask, next, like);
  }
  Value* none = insertConstant(next, c10::IValue());
  Value* absent = insertValue(next, aten::__is__, {mask, none}, like, c10::BoolType::get());
  Node* branch = insertNode(next, prim::If, {absent}, like);
  Block* without = branch->addBlock();
  without->registerOutput(insertNoMask(without->return_node()));
  Block* with = branch->addBlock();
  Node* end = with->return_node();
  Value* given = insertValue(end, prim::unchecked_cast, {mask}, like, c10::TensorType::get());
  with->registerOutput(insertComputedMask(given, end, like));
  return branch->output();
}

// The addend of the scores, or nothing.
Value* insertAddend(const Expansion& attention, Made& made) {
  Node* node = attention.node;
  Value *mask = inputOf(node, "attn_mask"), *added = nullptr;
  if (attention.mask) {
    added = insertMask(node, *attention.mask);
  } else if (attention.floats) {
    added = mask;
  } else if (!isNone(mask)) {
    Value*& shared = made.masks[mask];
    added = shared = shared == nullptr ? insertSharedMask(mask, node) : shared;
  }
  if (attention.causal) {
    return *attention.causal ? insertCausalMask(attention, node, made) : added;
  }
  Node* branch = insertNode(node, prim::If, {inputOf(node, "is_causal")}, node);
  Block* hides = branch->addBlock();
  Node* end = hides->return_node();
  Value* causal = insertCausalMask(attention, end, made);
  hides->registerOutput(
      added == nullptr ? causal
                       : insertValue(end, aten::add, {causal, added, insertConstant(end, int64_t{1})}, node));
  Block* otherwise = branch->addBlock();
  otherwise->registerOutput(added != nullptr ? added : insertNoMask(otherwise->return_node()));
  return branch->output();
}

Value* insertScale(const Expansion& attention, Value* query) {
  Node* node = attention.node;
  if (attention.scale) {
    return insertConstant(node, *attention.scale);
  }
  Value* features =
      insertValue(node, aten::size, {query, insertConstant(node, int64_t{-1})}, node, c10::IntType::get());
  return insertValue(node, aten::pow, {features, insertConstant(node, -0.5)}, node, c10::FloatType::get());
}

void expand(const Expansion& attention, Made& made) {
  Node* node = attention.node;
  const auto insert = [&](c10::Symbol kind, const std::vector<Value*>& operands) {
    return insertValue(node, kind, operands, node);
  };
  const auto number = [&](int64_t axis) { return insertConstant(node, axis); };
  const auto split = [&](Value* value, const std::vector<int64_t>& parts) {
    return insert(aten::unflatten, {value, number(-3), insertConstant(node, parts)});
  };
  const auto join = [&](Value* value) { return insert(aten::flatten, {value, number(-4), number(-3)}); };
  Value *query = inputOf(node, "query"), *value = inputOf(node, "value");
  Value* transposed = insert(aten::transpose, {inputOf(node, "key"), number(-2), number(-1)});
  const int64_t key_heads = attention.key_heads, value_heads = attention.value_heads;
  if (key_heads > 0) {
    query = split(query, {key_heads, -1}), transposed = split(transposed, {-1, 1});
  }
  Value* scores = insert(aten::matmul, {query, transposed});
  scores = insert(aten::mul, {scores, insertScale(attention, query)});
  Value* added = insertAddend(attention, made);
  const bool apart = key_heads > 0 && (added != nullptr || key_heads != value_heads);
  scores = apart ? join(scores) : scores; // a mask has one axis for all heads
  scores = added != nullptr ? insert(aten::add, {scores, added, number(1)}) : scores;
  static const auto safe_softmax = symbol("aten::_safe_softmax");
  Value* weights = insert(
      isNone(node, "attn_mask") ? aten::softmax : safe_softmax,
      {scores, number(-1), insertConstant(node, c10::IValue())});
  if (key_heads > 0) {
    weights = apart ? split(weights, {value_heads, -1}) : weights;
    value = split(value, {-1, 1});
  }
  Value* result = insert(aten::matmul, {weights, value});
  result = key_heads > 0 ? join(result) : result;
  made.results.emplace(node->output(), result);
  replaceNode(node, result);
}

bool expandAttention(PassContext& context) {
  const auto found = nodesWhere(*context.graph(), [](auto* node) { return node->kind() == attention_kind; });
  if (found.empty()) {
    return false;
  }
  const KnownValues known(context);
  const Shapes shapes(context, Images::Unknown); // the sizes of a mask need certain ranks
  Dtypes dtypes(context);
  forEachNode(*context.graph(), [&](const Node* node) { dtypes.add(node); });
  std::vector<Expansion> expanded; // all before the first edit
  for (Node* node : found) {
    if (const auto reason = unlikeProducts(known, shapes, node)) {
      context.remark(node, "it is not written as products: " + *reason);
      continue;
    }
    Expansion& attention = expanded.emplace_back(Expansion{node, scaleOf(shapes, node)});
    Value* mask = inputOf(node, "attn_mask");
    const auto held = known.tensor(mask);
    const bool trains = held && held->is_floating_point() && !isConstant(mask); // a parameter, perhaps
    attention.mask = trains ? std::nullopt : held;
    attention.floats = isTensor(mask) && (trains || dtypes.isFloat(mask));
    attention.causal = constantBool(node, "is_causal");
    if (isGrouped(node)) {
      attention.key_heads = *headsOf(shapes, node, "key"),
      attention.value_heads = *headsOf(shapes, node, "value");
    }
    if (attention.causal != false) {
      attention.queries = shapes.ofAxis(inputOf(node, "query"), -2);
      attention.keys = shapes.ofAxis(inputOf(node, "key"), -2);
    }
  }
  Made made;
  for (const Expansion& attention : expanded) {
    expand(attention, made);
  }
  return !expanded.empty();
}

const RegisterPass expand_attention_pass{
    "expand_attention", "Write attention as products and softmax, which can be computed on integers.",
    expandAttention, needs("inlined")};

} // namespace
} // namespace jit_passes
