#include "shape_facts.h"

namespace jit_passes {

bool isAttention(const Node* node) { return node->kind() == aten::scaled_dot_product_attention; }

bool isRecurrentLayer(const Node* node) {
  return isRecurrent(node) && operandOf(node, "batch_sizes") == nullptr;
}

// prelu is none of them: its second operand belongs to axis 1.
bool broadcasts(const Node* node) {
  return isElementwise(node) && node->kind() != aten::prelu &&
         std::ranges::none_of(node->inputs(), mayBeTensor) &&
         std::count_if(node->inputs().begin(), node->inputs().end(), isTensor) == 2 &&
         isTensor(node->input(0)) && isTensor(node->input(1));
}

std::optional<int64_t> reducedAxes(const Node* node) {
  const bool other = node->inputs().size() < 3 || !isTensor(node->input(0)) || isTensor(node->input(1));
  if (other || node->maybeSchema() == nullptr) { // quantiles may add an axis
    return std::nullopt;
  }
  const Value *dims = operandOf(node, "dim"), *keeps = operandOf(node, "keepdim");
  if (dims == nullptr || keeps == nullptr || !constantNumber(keeps)) {
    return std::nullopt;
  }
  if (constantNumber(keeps) != 0.0) {
    return 0;
  }
  const auto axes = constantInts(dims);
  if (axes && !axes->empty()) { // without axes it reduces all of them
    return axes->size();
  }
  return constantNumber(dims) ? std::optional<int64_t>(1) : std::nullopt;
}

bool cutsTensor(const Node* node) {
  return movesData(node) && isTensor(mainOperand(node)) && !isTensor(node->output());
}

bool takesShape(const Node* node) {
  static const auto kinds = symbols({"aten::expand_as", "aten::reshape_as", "aten::view_as"});
  return kinds.count(node->kind()) > 0;
}

const Value* sizesMade(const Node* node) {
  static const auto kinds = symbols(
      {"aten::zeros", "aten::ones", "aten::full", "aten::empty", "aten::new_zeros", "aten::new_ones",
       "aten::new_full", "aten::new_empty"});
  return kinds.count(node->kind()) > 0 ? inputOf(node, "size") : nullptr;
}

const Value* sizesTaken(const Node* node) {
  static const std::unordered_map<c10::Symbol, const char*> lists{
      {aten::reshape, "shape"},
      {aten::view, "size"}, // of another dtype, it takes none
      {aten::_unsafe_view, "size"},
      {aten::expand, "size"},
      {aten::unflatten, "sizes"}};
  const auto found = lists.find(node->kind());
  return found == lists.end() ? sizesMade(node) : operandOf(node, found->second);
}

bool isCount(const Node* node) {
  return node->kind() == aten::arange &&
         (node->inputs().size() == 5 || (node->inputs().size() == 6 && constantNumber(node, "start") == 0.0));
}

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

} // namespace jit_passes
