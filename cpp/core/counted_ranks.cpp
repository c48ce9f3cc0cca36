// Ranks that a reshape tells by the number of its elements.
//
//   %y = aten::linear(%x, %weight)
//   %z = aten::reshape(%y, [%x.size(0), %x.size(1) * 8, %x.size(2) // 8])
//
// %z has as many elements as %y, and these sizes multiply to no more than those of the axes 0 to 2 of %x. Any further
// axis would come on top, with all that the layer gives: so there is none. Traced models ask for one size after the
// other, where scripted ones unpack all of them.
#include "graph.h"
#include "operators.h"
#include "shape_facts.h"
#include "shapes.h"

namespace jit_passes {
namespace {

// A product of sizes: no more than those of some axes, times `over`, by `under`.
struct Product {
  std::vector<std::pair<const Value*, int64_t>> axes;
  double over = 1, under = 1;
};

// Multiplies by a size, if it is made of what is known.
bool multiply(Product& product, const Value* size) {
  const Node* node = size->node();
  if (const auto number = wholeNumber(size)) {
    product.over *= static_cast<double>(*number);
    return *number > 0;
  }
  if (isConversion(node)) {
    return multiply(product, node->input(0));
  }
  if (isQuotient(node)) {
    const auto divisor = wholeNumber(node->input(1)).value_or(0);
    product.under *= static_cast<double>(divisor);
    return divisor > 0 && multiply(product, node->input(0));
  }
  if (node->kind() == aten::mul) {
    return multiply(product, node->input(0)) && multiply(product, node->input(1));
  }
  const auto axis =
      node->kind() == aten::size && node->inputs().size() == 2 ? wholeNumber(node->input(1)) : std::nullopt;
  if (axis && *axis >= 0) {
    product.axes.emplace_back(node->input(0), *axis);
  }
  return axis && *axis >= 0;
}

// Of a value that unflatten(-1, [n, ...]), unsqueeze(0), transpose(0, -2) and squeeze(-2) make, the value that these
// begin with, and n: the axis in front is a part of the features. PyTorch's attention takes query, key and value so.
std::optional<std::pair<const Value*, int64_t>> packedIn(const Value* value) {
  static const auto squeeze = symbol("aten::squeeze");
  const auto behind = [&](const Value* of, c10::Symbol kind, std::initializer_list<double> numbers) {
    const Node* node = of->node();
    bool same = node->kind() == kind && node->inputs().size() == numbers.size() + 1;
    for (size_t i = 0; same && i < numbers.size(); ++i) {
      same = constantNumber(node->input(i + 1)) == numbers.begin()[i];
    }
    return same ? node->input(0) : nullptr;
  };
  value = behind(value, squeeze, {-2});
  value = value ? behind(value, aten::transpose, {0, -2}) : nullptr;
  value = value ? behind(value, aten::unsqueeze, {0}) : nullptr;
  const Node* split = value ? value->node() : nullptr;
  if (split == nullptr || split->kind() != aten::unflatten || constantNumber(split->input(1)) != -1.0) {
    return std::nullopt;
  }
  const Node* list = split->input(2)->node();
  const auto numbers = constantInts(split->input(2));
  const bool made = list->kind() == prim::ListConstruct && list->inputs().size() == 2;
  const auto parts = numbers && numbers->size() == 2 ? std::optional(numbers->front())
                     : made                          ? wholeNumber(list->input(0))
                                                     : std::nullopt;
  return parts && *parts > 0 ? std::optional(std::pair(split->input(0), *parts)) : std::nullopt;
}

bool isDivided(const Node* node) {
  static const auto split = symbol("aten::split");
  return node->kind() == aten::chunk || node->kind() == split;
}

} // namespace

const Value* Shapes::source(const Value* tensor) const {
  while (keepsShape(tensor->node()) && !isWritten(tensor) && !isWritten(tensor->node()->input(0))) {
    tensor = tensor->node()->input(0);
  }
  return tensor;
}

std::optional<Shapes::Layered> Shapes::layered(const Value* tensor) const {
  tensor = source(tensor);
  const Node* node = tensor->node();
  if (isWritten(tensor)) {
    return std::nullopt;
  }
  const auto weighted = weightedOperator(node);
  if (weighted && weighted->spatial_dims == 0) {
    const auto weight = known_.tensor(node->input(1));
    return weight && weight->dim() == 2 ? std::optional(Layered{source(node->input(0)), weight->size(0)})
                                        : std::nullopt;
  }
  const Value* whole = nullptr;
  int64_t parts = 1;
  if (node->kind() == aten::select && constantNumber(node->input(1)) == 0.0) {
    if (const auto packed = packedIn(source(node->input(0)))) {
      std::tie(whole, parts) = *packed;
    }
  } else if (node->kind() == prim::ListUnpack && tensor->offset() == 0 && isDivided(node->input(0)->node())) {
    whole = node->input(0)->node()->input(0); // the first part is not the smallest
    parts = static_cast<int64_t>(node->outputs().size());
  }
  auto found = whole ? layered(whole) : std::nullopt;
  if (found) {
    found->features /= parts;
  }
  return found;
}

std::optional<int64_t> Shapes::rankCounted(const Value* tensor) const {
  if (!counted_) {
    counted_.emplace();
    forEachNode(*graph_, [&](const Node* node) {
      if (const auto found = node->kind() == aten::reshape ? countedIn(node) : std::nullopt) {
        counted_->insert(*found);
      }
    });
  }
  const auto found = counted_->find(source(tensor));
  return found == counted_->end() ? std::nullopt : std::optional(found->second);
}

// The tensor that a reshape asks for sizes, and its rank.
std::optional<std::pair<const Value*, int64_t>> Shapes::countedIn(const Node* reshape) const {
  const Node* list = reshape->input(1)->node();
  const auto from = layered(reshape->input(0));
  Product product;
  if (!from || from->features <= 1 || list->kind() != prim::ListConstruct || isWritten(reshape->input(1)) ||
      !std::ranges::all_of(list->inputs(), [&](const Value* size) { return multiply(product, size); }) ||
      product.over > product.under || product.axes.empty()) {
    return std::nullopt;
  }
  const Value* asked = source(product.axes.front().first);
  std::set<int64_t> axes;
  for (const auto& [tensor, axis] : product.axes) {
    if (source(tensor) != asked || !axes.insert(axis).second) {
      return std::nullopt;
    }
  }
  const bool whole = *axes.rbegin() + 1 == int64_t(axes.size()) &&
                     (asked == from->from || asked == source(reshape->input(0))) &&
                     reshape->owningBlock() == asked->node()->owningBlock();
  return whole ? std::optional(std::pair(asked, int64_t(axes.size()))) : std::nullopt;
}

} // namespace jit_passes
