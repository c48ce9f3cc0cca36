#include "graph_numbers.h"

#include "builder.h"
#include "facts/shape_facts.h"
#include "x86/program/made.h"

namespace jit_passes::x86 {

void GraphNumbers::set(Operator& op, const Computed& computed) {
  for (const auto& [attribute, value] : computed) {
    op.computed.emplace_back(attribute, number(value));
  }
}

int64_t GraphNumbers::number(const Value* value) {
  if (const auto known = known_.find(value); known != known_.end()) {
    return known->second;
  }
  const Number number = made(value);
  program_.numbers.push_back(number);
  return known_[value] = static_cast<int64_t>(program_.numbers.size()) - 1;
}

Number GraphNumbers::made(const Value* value) {
  using How = Number::How;
  if (const auto constant = reader_.find(value)) {
    return {How::Constant, constant->toInt()};
  }
  const Node* node = value->node();
  const bool unpacks = node->kind() == c10::prim::ListUnpack;
  const bool listed = unpacks || node->kind() == c10::aten::__getitem__;
  const bool all = isSizes(value);
  const Node* size = listed ? node->input(0)->node() : node;
  if (size->kind() == c10::aten::size) {
    const auto axis = unpacks ? std::optional(c10::IValue(static_cast<int64_t>(value->offset())))
                      : all   ? std::optional(c10::IValue(0))
                              : reader_.find(node->input(1));
    const Value* tensor = size->input(0);
    refuseUnless(
        axis && axis->isInt() && !reader_.isWritten(tensor),
        "it needs a size that is not known before it runs");
    asked_(tensor);
    sizes_.emplace_back(program_.numbers.size(), tensor);
    return {all ? How::Sizes : How::Size, -1, axis->toInt()};
  }
  static const std::unordered_map<c10::Symbol, How> kinds{{c10::aten::add, How::Sum},
                                                          {c10::aten::sub, How::Difference},
                                                          {c10::aten::mul, How::Product},
                                                          {c10::aten::floordiv, How::Quotient},
                                                          {c10::aten::remainder, How::Remainder},
                                                          {c10::prim::min, How::Smaller},
                                                          {c10::prim::max, How::Larger}};
  const auto how = kinds.find(node->kind());
  refuseUnless(how != kinds.end() && computesSizes(node), "it reads a number that the model computes");
  const int64_t a = number(node->input(0)), b = number(node->input(1));
  return {how->second, a, b};
}

std::optional<Operator> GraphNumbers::power(const Value* value) {
  constexpr int kMostDepth = 8;
  const auto found = powerOf(value, kMostDepth);
  if (!found || found->base == nullptr) {
    return std::nullopt;
  }
  Operator op = powerOperator(value->debugName(), found->factor, found->exponent);
  op.computed = {{0, number(found->base)}};
  return op;
}

std::optional<GraphNumbers::Power> GraphNumbers::Power::raised(double by) const {
  const auto isWhole = [](double number) { return number == std::floor(number); };
  const bool hides = isWhole(exponent * by) && !(isWhole(exponent) && isWhole(by));
  return base != nullptr && hides ? std::nullopt
                                  : std::optional(Power{std::pow(factor, by), exponent * by, base});
}

std::optional<GraphNumbers::Power> GraphNumbers::powerOf(const Value* value, int depth) {
  const auto known = reader_.find(value);
  if (known && known->isTensor() && known->toTensor().dim() == 0) {
    return Power{known->toTensor().item<double>()};
  }
  if (known) {
    return known->isScalar() ? std::optional(Power{known->toScalar().toDouble()}) : std::nullopt;
  }
  const Node* node = value->node();
  const bool whole = value->type()->kind() == c10::TypeKind::IntType;
  if (whole && computesSizes(node)) {
    return Power{1, 1, value};
  }
  if (depth == 0 || reader_.isWritten(value) || !computesNumber(node)) {
    return std::nullopt;
  }
  std::vector<Power> of;
  for (const Value* operand : node->inputs()) {
    const auto found = powerOf(operand, depth - 1);
    if (!found) {
      return std::nullopt;
    }
    of.push_back(*found);
  }
  const auto kind = node->kind();
  if (kind == c10::aten::pow) {
    return of[1].base ? std::nullopt : of[0].raised(of[1].factor);
  }
  if (kind == c10::aten::mul || kind == c10::aten::div) {
    const Power& one = of[0];
    const auto other = kind == c10::aten::div ? of[1].raised(-1) : of[1];
    if (!other || (one.base && other->base)) {
      return std::nullopt;
    }
    const Power& sized = one.base ? one : *other;
    return Power{one.factor * other->factor, sized.exponent, sized.base};
  }
  static const std::unordered_map<c10::Symbol, double> exponents{
      {c10::aten::sqrt, 0.5}, {c10::aten::rsqrt, -0.5}, {c10::aten::reciprocal, -1}};
  const auto exponent = exponents.find(kind);
  const auto result = exponent == exponents.end() ? of[0] : of[0].raised(exponent->second);
  const bool rounds = whole && result && (result->factor != 1 || result->exponent != 1);
  return rounds ? std::nullopt : result;
}

void GraphNumbers::settle(const std::function<std::optional<int64_t>(const Value* tensor)>& valueOf) {
  for (const auto& [number, tensor] : sizes_) {
    program_.numbers[number].a = valueOf(tensor).value_or(-1);
  }
  std::vector<bool> known(program_.grids.size());
  for (const Operator& op : program_.operators) {
    std::vector<bool> seen(program_.numbers.size());
    for (const auto& [attribute, number] : op.computed) {
      forEachSized(program_, number, seen, [&](int64_t value) {
        TORCH_CHECK(
            value >= 0 && known[value], op.name,
            " cannot be part of a plan: it needs a size that is not known before it");
      });
    }
    known[op.output] = true;
  }
  for (Number& number : program_.numbers) { // numbers that no operator needs
    number = number.how != Number::How::Constant && number.a < 0 ? Number{Number::How::Constant} : number;
  }
}

} // namespace jit_passes::x86
