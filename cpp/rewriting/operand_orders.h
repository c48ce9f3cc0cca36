// In which order the operands of a node that commutes may match.
#pragma once

#include "match.h"

namespace jit_passes {

// The operands of a node, as the pattern has them or with the first two exchanged.
enum OperandOrder { kAsWritten, kExchanged, kEither };

bool hasRest(const Node* wanted);

// A list that the pattern puts together, where the graph has a constant.
bool isConstantList(const Node* wanted, const Node* node);

// The orders of operands to try in one match. Bindings so far decide which are left.
class OperandOrders {
 public:
  OperandOrders(const Pattern& pattern, const MatchOptions& options, const Match& match);

  bool mayExchange(const Node* wanted) const;
  // Where neither order may match, the one that is written: what fails then says why.
  OperandOrder of(const Node* wanted, const Node* node);

 private:
  struct PairHash {
    size_t operator()(const std::pair<const Node*, const Node*>& pair) const {
      return c10::get_hash(pair.first, pair.second);
    }
  };

  bool mayStandFor(const Value* wanted, const Value* value);
  // By operators, constants and types alone, which is decided once for each pair: orders that lead nowhere
  // cost no search.
  bool mayCompute(const Value* wanted, const Value* value);
  bool operandsMayCompute(const Node* wanted, const Node* node);

  const Pattern& pattern_;
  const MatchOptions& options_;
  const Match& match_;
  bool exchanges_; // whether the pattern has operands to exchange
  std::unordered_map<std::pair<const Node*, const Node*>, bool, PairHash> computes_;
};

} // namespace jit_passes
