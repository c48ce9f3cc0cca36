#include "rule.h"

#include "graph/alias.h"

namespace jit_passes {

bool WrittenValues::has(const Value* value) {
  if (!values_) {
    values_ = writtenValues(context_.graph());
  }
  return values_->count(value) > 0;
}

void WrittenValues::replace(const Value* old, const Value* replacement) {
  if (values_ && values_->count(old)) {
    values_->insert(replacement);
  }
}

void WrittenValues::remove(const Node* node) {
  for (const Value* output : values_ ? node->outputs() : at::ArrayRef<const Value*>()) {
    values_->erase(output);
  }
}

Value* MatchView::value(std::string_view name) const {
  for (const auto& [wanted, value] : match.values) {
    if (wanted->hasDebugName() && inputName(wanted) == name) {
      return value;
    }
  }
  TORCH_CHECK(false, "the pattern has no value %", name, ":\n", pattern.graph->toString());
}

std::optional<c10::IValue> MatchView::known(std::string_view name) const {
  Value* found = value(name);
  return isConstant(found) ? constantOf(found) : attribute(found);
}

std::optional<c10::IValue> MatchView::known(const Value* input) const {
  const auto found = match.values.find(input);
  if (found == match.values.end()) {
    return std::nullopt;
  }
  if (isConstant(found->second)) {
    return constantOf(found->second);
  }
  return attribute(found->second);
}

Rule::Rule(std::string name, Pattern pattern, std::shared_ptr<Graph> replacement)
    : name(std::move(name)), pattern(std::move(pattern)), replacement(std::move(replacement)) {
  checkReplacement();
  std::unordered_set<std::string> known;
  for (const Value* input : this->pattern.graph->inputs()) {
    if (input->hasUses()) { // an input without a use matches nothing
      known.insert(inputName(input));
    }
  }
  for (const Value* input : this->replacement->inputs()) {
    if (input->hasUses() && !known.count(inputName(input))) {
      TORCH_CHECK(
          !isRest(input), "the replacement uses %", inputName(input),
          ", which stands for further operands, and the pattern does not");
      computed.push_back(inputName(input));
    }
  }
}

void Rule::checkReplacement() {
  TORCH_CHECK(
      replacement->outputs().size() == pattern.graph->outputs().size(), "the pattern returns ",
      pattern.graph->outputs().size(), " values and the replacement ", replacement->outputs().size());
  checkRests(*replacement);
  forEachNode(*replacement, [&](const Node* node) {
    TORCH_CHECK(
        node->owningBlock() == replacement->block() || !pattern.alternatives.count(node->kind()),
        "a name with alternatives cannot stand in a branch or loop of the replacement");
  });
  for (const Node* node : replacement->nodes()) {
    TORCH_CHECK(
        node->kind() != prim::CallFunction && node->kind() != prim::CallMethod, describe(node),
        " cannot be part of a replacement: it is a call that cannot be inlined");
    // A name with alternatives stands for the operator that the pattern's node of that name has matched.
    if (pattern.alternatives.count(node->kind())) {
      const auto times = std::ranges::count_if(
          pattern.nodes(), [&](const Node* wanted) { return wanted->kind() == node->kind(); });
      TORCH_CHECK(
          times > 0, "the replacement has ", node->kind().toQualString(),
          ", and no operator of the pattern says which of its alternatives it is");
      TORCH_CHECK(
          times == 1, "the pattern has ", node->kind().toQualString(), " ", times,
          " times, so the replacement's could be any of them: give them different names, match::a and "
          "match::b");
    }
  }
}

Kinds kindsOf(const Rule& rule, const Match& match) {
  Kinds kinds;
  for (const Node* wanted : rule.pattern.nodes()) {
    if (rule.pattern.alternatives.count(wanted->kind())) {
      kinds.emplace(wanted->kind(), match.nodes.at(wanted)->kind());
    }
  }
  return kinds;
}

} // namespace jit_passes
