#include "alias_check.h"

#include "graph/alias.h"
#include "graph/operators.h"

namespace jit_passes {
namespace {

using NodeSet = std::unordered_set<const Node*>;

bool isBetween(const Node* node, const Node* from, const Node* to) {
  return node->isAfter(from) && node->isBefore(to);
}

// Finds why a write to memory makes a rewrite of the match wrong.
class AliasCheck {
 public:
  AliasCheck(AliasClasses& aliases, const Rule& rule, const Match& match, const Node* point)
      : aliases_(aliases),
        rule_(rule),
        match_(match),
        point_(point),
        before_(*rule.pattern.graph, AliasClasses::Inputs::Distinct, kindsOf(rule, match)),
        within_(*rule.replacement, AliasClasses::Inputs::Distinct, kindsOf(rule, match)) {
    for (const auto& [wanted, node] : match.nodes) {
      inside_.insert(node);
    }
    for (const Value* input : rule.pattern.graph->inputs()) {
      named_[inputName(input)] = input;
      for (const Value* operand : match.operandsOf(input)) {
        if (operand->owningGraph() == point->owningGraph()) { // the element of a constant list is a number
          inputs_.push_back(operand);
        }
      }
    }
  }

  std::optional<std::string> refusal() {
    std::string reason;
    for (const Node* wanted : rule_.pattern.nodes()) {
      const Node* node = match_.nodes.at(wanted);
      if (node->kind() == prim::ListConstruct) {
        continue; // a list only refers to its elements: the list's readers are checked
      }
      for (const Value* operand : node->inputs()) {
        const Node* list = operand->node();
        const bool made = list->kind() == prim::ListConstruct && inside_.count(list) > 0;
        reason = reason.empty() ? checkReads(node, operand) : reason;
        for (size_t i = 0; made && i < list->inputs().size(); ++i) {
          reason = reason.empty() ? checkReads(node, list->inputs()[i]) : reason;
        }
      }
    }
    for (const Value* input : inputs_) {
      reason = reason.empty() ? checkWrites(input) : reason;
    }
    reason = reason.empty() ? checkReplacement() : reason;
    reason = reason.empty() ? checkUses() : reason;
    reason = reason.empty() ? checkResults() : reason;
    return reason.empty() ? std::nullopt : std::optional(reason);
  }

 private:
  // Whether the replacement would come before the node, and the writer stands in between.
  bool overtaken(const Node* writer, const Node* node) const {
    if (!point_->isBefore(node)) {
      return false;
    }
    for (const Node* around = writer; around != nullptr; around = around->owningBlock()->owningNode()) {
      if (around == point_) {
        return true;
      }
    }
    return isBetween(writer, point_, node);
  }

  // No other node may write to the operand between the matched node and the place of the replacement.
  std::string checkReads(const Node* node, const Value* operand) {
    for (const Node* writer : aliases_.writersOf(operand)) {
      if (!inside_.count(writer) && (isBetween(writer, node, point_) || overtaken(writer, node))) {
        return describe(writer) + " writes to what " + describe(node) +
               " reads, between the matched operators";
      }
    }
    return "";
  }

  // No other node may see memory that the pattern writes to: it would miss the write.
  std::string checkWrites(const Value* input) {
    for (const Node* writer : aliases_.writersOf(input)) {
      if (inside_.count(writer) &&
          (inside_.count(input->node()) || !aliases_.onlyWithin(input, inside_, point_))) {
        return describe(writer) + " writes to memory that others see, which the replacement would not";
      }
    }
    return "";
  }

  // No other node may see memory that the replacement writes to.
  std::string checkReplacement() {
    for (const Value* input : rule_.replacement->inputs()) {
      const auto found = named_.find(inputName(input));
      for (const Node* writer : within_.writersOf(input)) {
        if (found == named_.end() || !trains(writer)) {
          continue;
        }
        for (const Value* operand : match_.operandsOf(found->second)) {
          if (!aliases_.onlyWithin(operand, inside_, point_)) {
            return describe(writer) + " of the replacement writes to memory that others see";
          }
        }
      }
    }
    return "";
  }

  // Whether a writer of the replacement really writes: a normalization writes only in training, and the match may
  // tell.
  bool trains(const Node* writer) const {
    if (!isNormalization(writer->kind())) {
      return true;
    }
    std::vector<const Value*> operands;
    for (const Value* operand : writer->inputs()) {
      const bool bound = operand->node()->kind() == prim::Param && named_.count(inputName(operand));
      if (!bound) {
        operands.push_back(operand);
        continue;
      }
      for (const Value* value : match_.operandsOf(named_.at(inputName(operand)))) {
        operands.push_back(value);
      }
    }
    return operands.size() <= kTraining || constantNumber(operands[kTraining]) != 0.0;
  }

  // No other node may read a result before the pattern writes to it.
  std::string checkUses() {
    for (const Value* output : rule_.pattern.graph->outputs()) {
      const Value* result = match_.values.at(output);
      for (const Node* writer : aliases_.writersOf(result)) {
        for (const auto& use : result->uses()) {
          if (inside_.count(writer) && !inside_.count(use.user) && use.user->isBefore(writer)) {
            return describe(use.user) + " reads a result before " + describe(writer) + " writes to it";
          }
        }
      }
    }
    return "";
  }

  // No other node may write to a result that shares memory with an operand or another result, in the pattern or in
  // the replacement, unless the operand is visible to the match alone. Values that share memory because of other
  // nodes, such as a state and the state of the next step, share it with and without the rewrite.
  std::string checkResults() {
    const auto outputs = rule_.pattern.graph->outputs();
    const auto replacements = rule_.replacement->outputs();
    std::vector<const Value*> seen;
    std::copy_if(inputs_.begin(), inputs_.end(), std::back_inserter(seen), [&](const Value* input) {
      return !aliases_.onlyWithin(input, inside_, point_);
    });
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Value* result = match_.values.at(outputs[i]);
      bool shares = false;
      for (const Value* input : rule_.pattern.graph->inputs()) {
        shares |= sees(input, seen) && before_.mayAlias(outputs[i], input);
      }
      for (const Value* input : rule_.replacement->inputs()) {
        shares |= sees(input, seen) && within_.mayAlias(replacements[i], input);
      }
      for (size_t j = 0; j < outputs.size(); ++j) {
        shares |= j != i && (before_.mayAlias(outputs[i], outputs[j]) ||
                             within_.mayAlias(replacements[i], replacements[j]));
      }
      if (!shares) {
        continue;
      }
      auto writers = aliases_.writersOf(result);
      for (const Value* input : inputs_) {
        const auto more = aliases_.writersOf(input);
        writers.insert(writers.end(), more.begin(), more.end());
      }
      const bool in_loop = point_->owningBlock()->owningNode() != nullptr;
      for (const Node* writer : writers) {
        if (!inside_.count(writer) && (in_loop || !writer->isBefore(point_))) {
          return describe(writer) + " writes to memory that the result shares with an operand, " +
                 "in the model or in the replacement";
        }
      }
    }
    return "";
  }

  // Whether an input of the replacement is among these values. A computed input is an attribute, which all nodes
  // see.
  bool sees(const Value* input, const std::vector<const Value*>& values) const {
    const auto found = named_.find(inputName(input));
    if (found == named_.end()) {
      return true;
    }
    const auto operands = match_.operandsOf(found->second);
    return std::ranges::any_of(operands, [&](const Value* operand) {
      return std::find(values.begin(), values.end(), operand) != values.end();
    });
  }

  AliasClasses& aliases_;
  const Rule& rule_;
  const Match& match_;
  const Node* point_;
  AliasClasses before_, within_; // of the pattern and of the replacement
  NodeSet inside_;
  std::unordered_map<std::string, const Value*> named_;
  std::vector<const Value*> inputs_;
};

} // namespace

std::optional<AliasClasses> aliasesOf(PassContext& context, const std::vector<const Rule*>& rules) {
  const bool writes = anyMayWrite(*context.graph()) ||
                      std::ranges::any_of(rules, [](auto* rule) { return anyMayWrite(*rule->replacement); });
  if (!writes) {
    return std::nullopt;
  }
  return AliasClasses(*context.graph(), context.hasModule() ? &context.module() : nullptr);
}

std::optional<std::string> aliasRefusal(
    AliasClasses& aliases, const Rule& rule, const Match& match, const Node* point) {
  return AliasCheck(aliases, rule, match, point).refusal();
}

} // namespace jit_passes
