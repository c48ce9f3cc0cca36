#include "counted_ranks.h"

#include "graph/operators.h"
#include "shape_facts.h"

namespace jit_passes {
namespace {

// A product of sizes. The product is at most the product of the sizes of `axes`, times `over`, divided by `under`.
struct Product {
  std::vector<std::pair<const Value*, int64_t>> axes;
  double over = 1, under = 1;
};

// Multiplies by a size, if it is computed from sizes of axes and constants.
bool multiply(Product& product, const Value* size) {
  const Node* node = size->node();
  if (const auto number = wholeNumber(size)) {
    product.over *= static_cast<double>(*number);
    return *number > 0;
  }
  if (isConversion(node)) {
    return multiply(product, node->input());
  }
  if (isQuotient(node)) {
    const auto divisor = wholeNumber(node->input(1)).value_or(0);
    product.under *= static_cast<double>(divisor);
    return divisor > 0 && multiply(product, mainOperand(node));
  }
  if (node->kind() == aten::mul) {
    return multiply(product, node->input(0)) && multiply(product, node->input(1));
  }
  const bool asks = node->kind() == aten::size && node->inputs().size() == 2;
  const auto axis = asks ? wholeNumber(inputOf(node, "dim")) : std::nullopt;
  if (axis && *axis >= 0) {
    product.axes.emplace_back(inputOf(node, "self"), *axis);
  }
  return axis && *axis >= 0;
}

// For the result of unflatten(-1, [n, ...]), unsqueeze(0), transpose(0, -2) and squeeze(-2): the operand of
// unflatten, and n. PyTorch's attention splits query, key and value in this way, so the first axis is a part of the
// features.
std::optional<std::pair<const Value*, int64_t>> packedIn(const Value* value) {
  const auto behind = [&](const Value* of, c10::Symbol kind, std::initializer_list<double> numbers) {
    const Node* node = of->node();
    bool same = node->kind() == kind && node->inputs().size() == numbers.size() + 1;
    for (size_t i = 0; same && i < numbers.size(); ++i) {
      same = constantNumber(node->input(i + 1)) == numbers.begin()[i];
    }
    return same ? mainOperand(node) : nullptr;
  };
  value = behind(value, aten::squeeze, {-2});
  value = value ? behind(value, aten::transpose, {0, -2}) : nullptr;
  value = value ? behind(value, aten::unsqueeze, {0}) : nullptr;
  const Node* split = value ? value->node() : nullptr;
  if (split == nullptr || split->kind() != aten::unflatten || constantNumber(split, "dim") != -1.0) {
    return std::nullopt;
  }
  const Node* list = inputOf(split, "sizes")->node();
  const auto numbers = constantInts(split, "sizes");
  const bool made = list->kind() == prim::ListConstruct && list->inputs().size() == 2;
  const auto parts = numbers && numbers->size() == 2 ? std::optional(numbers->front())
                     : made                          ? wholeNumber(list->input(0))
                                                     : std::nullopt;
  return parts && *parts > 0 ? std::optional(std::pair(inputOf(split, "self"), *parts)) : std::nullopt;
}

bool isDivided(const Node* node) {
  static const auto split = symbol("aten::split");
  return node->kind() == aten::chunk || node->kind() == split;
}

// For the result of a linear layer, or a part of one: the tensor that the layer reads, and the least number of
// features.
struct Layered {
  const Value* from;
  int64_t features;
};

std::optional<Layered> layered(const Value* tensor, const SizeFacts& shapes) {
  tensor = shapes.source(tensor);
  const Node* node = tensor->node();
  if (shapes.isWritten(tensor)) {
    return std::nullopt;
  }
  const auto weighted = weightedOperator(node);
  if (weighted && weighted->spatial_dims == 0) {
    const auto weight = shapes.constant(inputOf(node, "weight"));
    const bool matrix = weight && weight->dim() == 2;
    return matrix ? std::optional(Layered{shapes.source(inputOf(node, "input")), weight->size(0)})
                  : std::nullopt;
  }
  const Value* whole = nullptr;
  int64_t parts = 1;
  if (node->kind() == aten::select && constantNumber(node->input(1)) == 0.0) {
    if (const auto packed = packedIn(shapes.source(mainOperand(node)))) {
      std::tie(whole, parts) = *packed;
    }
  } else if (node->kind() == prim::ListUnpack && tensor->offset() == 0 && isDivided(node->input()->node())) {
    whole = mainOperand(node->input()->node()); // no part is larger than the first
    parts = static_cast<int64_t>(node->outputs().size());
  }
  auto found = whole ? layered(whole, shapes) : std::nullopt;
  if (found) {
    found->features /= parts;
  }
  return found;
}

} // namespace

std::optional<std::pair<const Value*, int64_t>> countedIn(const Node* reshape, const SizeFacts& shapes) {
  const Node* list = inputOf(reshape, "shape")->node();
  const auto from = layered(inputOf(reshape, "self"), shapes);
  Product product;
  if (!from || from->features <= 1 || list->kind() != prim::ListConstruct ||
      shapes.isWritten(list->output()) ||
      !std::ranges::all_of(list->inputs(), [&](const Value* size) { return multiply(product, size); }) ||
      product.over > product.under || product.axes.empty()) {
    return std::nullopt;
  }
  const Value* asked = shapes.source(product.axes.front().first);
  std::set<int64_t> axes;
  for (const auto& [tensor, axis] : product.axes) {
    if (shapes.source(tensor) != asked || !axes.insert(axis).second) {
      return std::nullopt;
    }
  }
  const bool whole = *axes.rbegin() + 1 == int64_t(axes.size()) &&
                     (asked == from->from || asked == shapes.source(inputOf(reshape, "self"))) &&
                     reshape->owningBlock() == asked->node()->owningBlock();
  return whole ? std::optional(std::pair(asked, int64_t(axes.size()))) : std::nullopt;
}

} // namespace jit_passes
