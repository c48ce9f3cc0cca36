#include "operand_orders.h"

#include "graph/operators.h"

namespace jit_passes {

bool hasRest(const Node* wanted) { return !wanted->inputs().empty() && isRest(wanted->inputs().back()); }

bool isConstantList(const Node* wanted, const Node* node) {
  if (wanted->kind() != prim::ListConstruct || node->kind() != prim::Constant) {
    return false;
  }
  const auto list = constantOf(node->output());
  return list && list->isList() && list->toListRef().size() == wanted->inputs().size();
}

OperandOrders::OperandOrders(const Pattern& pattern, const MatchOptions& options, const Match& match)
    : pattern_(pattern),
      options_(options),
      match_(match),
      exchanges_(options.commutative && pattern.exchanges(options.named)) {}

bool OperandOrders::mayExchange(const Node* wanted) const {
  return exchanges_ && pattern_.mayExchange(wanted, options_.named);
}

OperandOrder OperandOrders::of(const Node* wanted, const Node* node) {
  const auto operands = node->inputs();
  if (!mayExchange(wanted) || !commutes(node) || operands[0] == operands[1]) {
    return kAsWritten;
  }
  // PyTorch's operators have the tensor first, so the first operand in a pattern without types is meant to be a
  // tensor.
  const bool mixed = isTensor(operands[0]) != isTensor(operands[1]);
  const Value* first = wanted->input(0);
  const bool untyped = first->node()->kind() == prim::Param && !pattern_.isTyped(first);
  const auto fit = [&](size_t i, size_t j) {
    return mayStandFor(wanted->input(0), operands[i]) && mayStandFor(wanted->input(1), operands[j]);
  };
  if ((mixed && untyped) || !fit(1, 0)) {
    return kAsWritten;
  }
  return fit(0, 1) ? kEither : kExchanged;
}

bool OperandOrders::mayStandFor(const Value* wanted, const Value* value) {
  if (const auto known = match_.values.find(wanted); known != match_.values.end()) {
    return known->second == value || sameConstant(known->second, value);
  }
  return mayCompute(wanted, value);
}

bool OperandOrders::mayCompute(const Value* wanted, const Value* value) {
  if (wanted->node()->kind() == prim::Param) {
    return !pattern_.isTyped(wanted) || hasTypeOf(wanted, value, options_.attribute);
  }
  if (isConstant(wanted)) {
    return isConstantOf(wanted, value, options_.attribute);
  }
  const Node *maker = wanted->node(), *node = value->node();
  if (isConstantList(maker, node)) {
    return true;
  }
  if (wanted->offset() != value->offset() || !pattern_.mayBe(maker, node->kind())) {
    return false;
  }
  const auto [entry, is_new] = computes_.try_emplace({maker, node}, false);
  bool& known = entry->second; // the reference stays valid while other entries are added
  if (is_new) {
    known = operandsMayCompute(maker, node);
  }
  return known;
}

bool OperandOrders::operandsMayCompute(const Node* wanted, const Node* node) {
  const auto operands = node->inputs();
  const size_t count = wanted->inputs().size() - (hasRest(wanted) ? 1 : 0);
  if (operands.size() < count) {
    return false;
  }
  const bool either = mayExchange(wanted) && commutes(node);
  for (size_t i = either ? 2 : 0; i < count; ++i) {
    if (!mayCompute(wanted->input(i), operands[i])) {
      return false;
    }
  }
  const auto fit = [&](size_t i, size_t j) {
    return mayCompute(wanted->input(0), operands[i]) && mayCompute(wanted->input(1), operands[j]);
  };
  return !either || fit(0, 1) || fit(1, 0);
}

} // namespace jit_passes
