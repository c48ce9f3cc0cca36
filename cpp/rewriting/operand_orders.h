// The orders in which the first two operands of a commutative node may match.
#pragma once

#include "match.h"

namespace jit_passes {

// The operands of a node in the order of the pattern, or with the first two exchanged, or both.
enum OperandOrder { kAsWritten, kExchanged, kEither };

bool hasRest(const Node* wanted);

// Whether the pattern has a prim::ListConstruct and the graph a constant list.
bool isConstantList(const Node* wanted, const Node* node);

// The orders of operands to try in one match. The orders depend on the bindings so far.
class OperandOrders {
 public:
  OperandOrders(const Pattern& pattern, const MatchOptions& options, const Match& match);

  bool mayExchange(const Node* wanted) const;
  // If neither order may match, the order of the pattern, whose failure then gives the reason.
  OperandOrder of(const Node* wanted, const Node* node);

 private:
  struct PairHash {
    size_t operator()(const std::pair<const Node*, const Node*>& pair) const {
      return c10::get_hash(pair.first, pair.second);
    }
  };

  bool mayStandFor(const Value* wanted, const Value* value);
  // Whether operators, constants and types let the value match, for any bindings. The answer is kept for each pair,
  // so an impossible order costs no search.
  bool mayCompute(const Value* wanted, const Value* value);
  bool operandsMayCompute(const Node* wanted, const Node* node);

  const Pattern& pattern_;
  const MatchOptions& options_;
  const Match& match_;
  bool exchanges_; // whether the pattern has operands to exchange
  std::unordered_map<std::pair<const Node*, const Node*>, bool, PairHash> computes_;
};

} // namespace jit_passes
