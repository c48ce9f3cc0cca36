#include "assumed_ranks.h"

#include "graph/operators.h"
#include "results.h"
#include "shape_facts.h"

namespace jit_passes {

std::optional<int64_t> AssumedRanks::rank(const Value* tensor) const {
  return remember(ranks_, tensor, &AssumedRanks::findRank);
}

AxisRange AssumedRanks::axes(const Value* tensor) const {
  const auto assumed = rank(tensor);
  return assumed ? AxisRange{*assumed, *assumed} : shapes_.axes(tensor);
}

std::optional<int64_t> AssumedRanks::length(const Value* list) const { return shapes_.length(list); }

bool AssumedRanks::squeezes(const Node* squeeze) const { return shapes_.squeezed(squeeze).has_value(); }

std::optional<int64_t> AssumedRanks::number(const Value* value) const {
  return remember(numbers_, value, &AssumedRanks::findNumber);
}

std::optional<int64_t> AssumedRanks::remember(
    Answers& answers, const Value* value,
    std::optional<int64_t> (AssumedRanks::*find)(const Value*) const) const {
  const auto [known, added] = answers.emplace(value, std::nullopt);
  if (!added) {
    return known->second;
  }
  const auto found = (this->*find)(value);
  return answers[value] = found;
}

std::optional<int64_t> AssumedRanks::findRank(const Value* tensor) const {
  if (const auto known = shapes_.rank(tensor)) {
    return known;
  }
  if (shapes_.isWritten(tensor)) {
    return std::nullopt;
  }
  if (tensor->node()->kind() == prim::If) {
    return ofBranch(tensor, [&](const Value* side) { return rank(side); });
  }
  const auto row = axesOfResult(tensor, *this);
  return row ? rangeOf(*row, *this).exact() : std::nullopt;
}

std::optional<int64_t> AssumedRanks::ofBranch(
    const Value* output, const std::function<std::optional<int64_t>(const Value*)>& ofSide) const {
  const Node* branch = output->node();
  const auto side = [&](size_t block) {
    return ofSide(branch->blocks()[block]->outputs()[output->offset()]);
  };
  if (const auto known = number(branch->input())) {
    return side(*known != 0 ? 0 : 1);
  }
  const auto first = side(0);
  return first == side(1) ? first : std::nullopt;
}

std::optional<int64_t> AssumedRanks::findNumber(const Value* value) const {
  const auto type = value->type()->kind();
  if (type != c10::TypeKind::IntType && type != c10::TypeKind::BoolType) {
    return std::nullopt;
  }
  if (const auto constant = constantNumber(value)) {
    return static_cast<int64_t>(*constant);
  }
  const Node* node = value->node();
  if (node->kind() == prim::If) {
    return ofBranch(value, [&](const Value* side) { return number(side); });
  }
  if (node->kind() == aten::dim) {
    return rank(node->input());
  }
  if (node->kind() == aten::len) {
    const Node* sizes = node->input()->node();
    const bool all = sizes->kind() == aten::size && sizes->inputs().size() == 1;
    return all ? rank(sizes->input()) : std::nullopt;
  }
  if (node->kind() == aten::__contains__) {
    const auto list = constantInts(node->input(0));
    const auto element = list ? number(node->input(1)) : std::nullopt;
    return element ? std::optional<int64_t>(std::ranges::count(*list, *element) > 0) : std::nullopt;
  }
  if (node->kind() == aten::__not__) {
    const auto operand = number(node->input());
    return operand ? std::optional<int64_t>(*operand == 0) : std::nullopt;
  }
  using Compare = bool (*)(int64_t, int64_t);
  static const std::unordered_map<c10::Symbol, Compare> comparisons{
      {aten::eq, [](int64_t a, int64_t b) { return a == b; }},
      {aten::ne, [](int64_t a, int64_t b) { return a != b; }},
      {aten::lt, [](int64_t a, int64_t b) { return a < b; }},
      {aten::le, [](int64_t a, int64_t b) { return a <= b; }},
      {aten::gt, [](int64_t a, int64_t b) { return a > b; }},
      {aten::ge, [](int64_t a, int64_t b) { return a >= b; }}};
  const auto comparison = comparisons.find(node->kind());
  if (comparison == comparisons.end()) {
    return std::nullopt;
  }
  const auto left = number(node->input(0));
  const auto right = left ? number(node->input(1)) : std::nullopt;
  return right ? std::optional<int64_t>(comparison->second(*left, *right)) : std::nullopt;
}

bool AssumedRanks::raises(const Block* block) const {
  return std::ranges::any_of(block->nodes(), [&](const Node* node) {
    if (node->kind() != prim::If) {
      return node->kind() == prim::RaiseException;
    }
    const auto known = number(node->input());
    return known ? raises(node->blocks()[*known != 0 ? 0 : 1])
                 : raises(node->blocks()[0]) && raises(node->blocks()[1]);
  });
}

} // namespace jit_passes
