// Numbers in a graph that are computed from sizes.
#include "shape_facts.h"
#include "shapes.h"

namespace jit_passes {
namespace {

constexpr int64_t kMostNumber = int64_t{1} << 30; // so that a product of two fits int64_t

} // namespace

bool isQuotient(const Node* node) {
  const bool floors = node->kind() == aten::floordiv || node->kind() == aten::floor_divide;
  const bool rounds = node->kind() == aten::div && node->inputs().size() == 3;
  const auto rounding = rounds ? constantOf(node, "rounding_mode") : std::nullopt;
  return floors || (rounding && rounding->isString());
}

bool isConversion(const Node* node) {
  static const auto kinds =
      symbols({"prim::NumToTensor", "aten::Int", "aten::ScalarImplicit", "aten::IntImplicit"});
  return node->inputs().size() == 1 && kinds.count(node->kind()) > 0;
}

bool computesSizes(const Node* node) {
  static const auto arithmetic = symbols(
      {"aten::add", "aten::sub", "aten::mul", "aten::floordiv", "aten::remainder", "prim::min", "prim::max"});
  const auto isWhole = [](const Value* value) { return value->type()->kind() == c10::TypeKind::IntType; };
  if (node->kind() == aten::size) {
    return true;
  }
  if (node->kind() == aten::__getitem__ || node->kind() == prim::ListUnpack) {
    return mainOperand(node)->node()->kind() == aten::size;
  }
  return arithmetic.count(node->kind()) > 0 && isWhole(node->output()) &&
         std::ranges::all_of(node->inputs(), isWhole);
}

bool isSizes(const Value* value) {
  return value->node()->kind() == aten::size && value->node()->inputs().size() == 1;
}

namespace {

constexpr int kMostComputed = 6; // depth of the walk through numbers that are tensors

bool isNumber(const Value* value, int depth);

// Whether the node is arithmetic on numbers alone.
bool computesNumber(const Node* node, int depth) {
  static const std::unordered_map<c10::Symbol, size_t> arithmetic{
      {aten::pow, 2},
      {aten::div, 2},
      {aten::mul, 2},
      {aten::sqrt, 1},
      {aten::rsqrt, 1},
      {aten::reciprocal, 1},
      {symbol("aten::Float"), 1}};
  const auto found = arithmetic.find(node->kind());
  return computesSizes(node) || isConversion(node) ||
         (found != arithmetic.end() && node->inputs().size() == found->second &&
          std::ranges::all_of(
              node->inputs(), [&](const Value* operand) { return isNumber(operand, depth); }));
}

bool isNumber(const Value* value, int depth) {
  if (!isTensor(value)) {
    return value->type()->isSubtypeOf(*c10::NumberType::get());
  }
  const auto constant = constantOf(value);
  return constant ? constant->isTensor() && constant->toTensor().dim() == 0
                  : depth > 0 && computesNumber(value->node(), depth - 1);
}

} // namespace

bool computesNumber(const Node* node) { return computesNumber(node, kMostComputed); }

namespace {

// Whether a number or a list is computed from sizes and constants alone.
bool followsFromSizes(const Value* value) {
  std::unordered_set<const Value*> seen{value};
  std::vector<const Value*> pending{value};
  while (!pending.empty()) {
    const Node* node = pending.back()->node();
    pending.pop_back();
    if (node->kind() == prim::Constant || node->kind() == aten::size) {
      continue;
    }
    if (node->kind() != prim::ListConstruct && node->kind() != prim::ListUnpack &&
        !computesNumber(node, kMostComputed)) {
      return false;
    }
    for (const Value* operand : node->inputs()) {
      if (seen.insert(operand).second) {
        pending.push_back(operand);
      }
    }
  }
  return true;
}

} // namespace

bool repeatsOrCuts(const Node* node) {
  static const auto moves = symbols({"aten::expand", "aten::slice", "aten::narrow", "aten::unsqueeze"});
  return moves.count(node->kind()) > 0;
}

const Node* movedConstant(const Node* node) {
  const bool moved = repeatsOrCuts(node);
  while (repeatsOrCuts(node)) {
    if (!std::ranges::all_of(node->inputs().slice(1), followsFromSizes)) {
      return nullptr;
    }
    node = mainOperand(node)->node();
  }
  const bool constant = node->kind() == prim::Constant || node->kind() == prim::GetAttr;
  return moved && constant && isTensor(node->output()) ? node : nullptr;
}

std::optional<int64_t> wholeNumber(const Value* value) {
  const auto constant = constantOf(value);
  if (constant && constant->isTensor()) {
    const at::Tensor& tensor = constant->toTensor();
    return tensor.dim() == 0 && at::isIntegralType(tensor.scalar_type(), false)
               ? std::optional(tensor.item<int64_t>())
               : std::nullopt;
  }
  return constant && constant->isInt() ? std::optional(constant->toInt()) : std::nullopt;
}

Extent Shapes::ofNumber(const Value* value) const {
  if (const auto known = numbers_.find(value); known != numbers_.end()) {
    return Extent::ofNumber(known->second);
  }
  const Extent found = findNumber(value);
  if (found.isNumber()) { // other answers may change once more ranks are known
    numbers_.emplace(value, *found.number());
  }
  return found;
}

Extent Shapes::findNumber(const Value* value) const {
  const Node* node = value->node();
  if (const auto constant = constantOf(value); constant && constant->isInt()) {
    return Extent::ofNumber(constant->toInt());
  }
  if (isConversion(node)) {
    return ofNumber(node->input());
  }
  if (const auto number = ofArithmetic(node)) {
    return Extent::ofNumber(*number);
  }
  const Extent held = Extent::ofInteger(value);
  if (node->kind() == aten::size && node->inputs().size() == 2) {
    const auto axis = constantOf(node, "dim");
    const bool known = axis && axis->isInt() && !known_.isWritten(value);
    return known ? ofAxis(inputOf(node, "self"), axis->toInt(), held) : held;
  }
  if (node->kind() == prim::ListUnpack) {
    return ofElement(node->input(), value->offset(), held);
  }
  const auto index = node->kind() == aten::__getitem__ ? constantOf(node->input(1)) : std::nullopt;
  return index && index->isInt() ? ofElement(mainOperand(node), index->toInt(), held) : held;
}

// The element of a list that holds the sizes of a tensor, or a slice of them. The index must exist.
Extent Shapes::ofElement(const Value* list, int64_t index, const Extent& otherwise) const {
  for (const Node* node = list->node(); !known_.isWritten(list); node = list->node()) {
    if (node->kind() == aten::size && node->inputs().size() == 1) {
      return ofAxis(inputOf(node, "self"), index, otherwise);
    }
    if (node->kind() != aten::slice || index < 0) {
      return otherwise;
    }
    const auto start =
        isNone(node, "start") ? std::optional<int64_t>(0) : wholeNumber(inputOf(node, "start"));
    if (!start || *start < 0 || wholeNumber(inputOf(node, "step")) != 1) {
      return otherwise;
    }
    index += *start, list = mainOperand(node);
  }
  return otherwise;
}

std::optional<std::pair<Extent, int64_t>> Shapes::asQuotient(const Extent& extent) const {
  const Node* node = extent.integer() != nullptr ? extent.integer()->node() : nullptr;
  if (node == nullptr || !isQuotient(node)) {
    return std::nullopt;
  }
  const auto divisor = wholeNumber(node->input(1));
  return divisor && *divisor > 0 ? std::optional(std::pair(ofNumber(mainOperand(node)), *divisor))
                                 : std::nullopt;
}

// The number of an expression such as `2 * (size // 4)`, also in the form that traced models have.
std::optional<int64_t> Shapes::ofArithmetic(const Node* node) const {
  static const auto sums = symbols({"aten::add", "aten::sub"});
  const bool divides = isQuotient(node), is_sum = sums.count(node->kind()) > 0;
  if ((!divides && !is_sum && node->kind() != aten::mul) || node->inputs().size() < 2 ||
      (is_sum && node->inputs().size() == 3 && wholeNumber(inputOf(node, "alpha")) != 1)) {
    return std::nullopt;
  }
  const auto numberOf = [&](const Value* value) -> std::optional<int64_t> {
    const auto number = ofNumber(value).number();
    return number ? number : wholeNumber(value);
  };
  const auto a = numberOf(node->input(0)), b = a ? numberOf(node->input(1)) : std::nullopt;
  if (!b || std::abs(*a) > kMostNumber || std::abs(*b) > kMostNumber) {
    return std::nullopt;
  }
  if (divides) { // trunc and floor agree for sizes, which are not negative
    return *a >= 0 && *b > 0 ? std::optional(*a / *b) : std::nullopt;
  }
  return node->kind() == aten::mul ? *a * *b : node->kind() == aten::add ? *a + *b : *a - *b;
}

// Follows sums and slices of lists, as in scripts: `x.shape[:-1] + [4, -1]`.
std::optional<std::vector<Extent>> Shapes::ofList(const Value* list) const {
  const Node* node = list->node();
  std::vector<Extent> sizes;
  if (known_.isWritten(list)) {
    return std::nullopt;
  }
  if (const auto constant = constantInts(list)) {
    for (const int64_t size : *constant) {
      sizes.push_back(Extent::ofNumber(size));
    }
    return sizes;
  }
  if (node->kind() == prim::ListConstruct) {
    for (const Value* size : node->inputs()) {
      sizes.push_back(ofNumber(size));
    }
    return sizes;
  }
  static const auto copies = symbol("aten::list");
  if (node->kind() == copies) {
    return ofList(node->input());
  }
  if (node->kind() == aten::size && node->inputs().size() == 1) {
    const auto own = rank(inputOf(node, "self"));
    for (int64_t axis = 0; axis < own.value_or(0); ++axis) {
      sizes.push_back(ofAxis(inputOf(node, "self"), axis));
    }
    return own ? std::optional(sizes) : std::nullopt;
  }
  const auto first =
      node->kind() == aten::add || node->kind() == aten::slice ? ofList(mainOperand(node)) : std::nullopt;
  if (!first) {
    return std::nullopt;
  }
  if (node->kind() == aten::add) {
    const auto second = ofList(node->input(1));
    if (second) {
      sizes = *first;
      sizes.insert(sizes.end(), second->begin(), second->end());
    }
    return second ? std::optional(sizes) : std::nullopt;
  }
  const int64_t count = first->size();
  const auto end = [&](const char* name, int64_t otherwise) -> std::optional<int64_t> {
    const Value* given = inputOf(node, name);
    const auto number = isNone(given) ? std::optional(otherwise) : wholeNumber(given);
    return number ? std::optional(std::clamp<int64_t>(*number < 0 ? *number + count : *number, 0, count))
                  : number;
  };
  const auto from = end("start", 0), to = end("end", count);
  return from && to && wholeNumber(inputOf(node, "step")) == 1
             ? std::optional(
                   std::vector<Extent>(first->begin() + *from, first->begin() + std::max(*from, *to)))
             : std::nullopt;
}

} // namespace jit_passes
