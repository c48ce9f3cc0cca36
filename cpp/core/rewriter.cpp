#include "rewriter.h"

namespace jit_passes {
namespace {

class Replacer {
 public:
  Replacer(const Rule& rule, const Match& match, Node* anchor)
      : rule_(rule), match_(match), anchor_(anchor), principal_(match.principal(rule.pattern)) {
    const auto from = rule.replacement.graph->inputs(), to = rule.pattern.graph->inputs();
    for (size_t i = 0; i < from.size(); ++i) {
      if (isRest(from[i])) {
        rests_[from[i]] = match.rests.at(to[i]);
      } else {
        values_[from[i]] = match.values.at(to[i]);
      }
    }
    for (const auto& [wanted, node] : match.nodes) {
      kinds_.emplace(wanted->kind(), node->kind());
      alive_.insert(node);
    }
  }

  void run() {
    for (const Node* node : rule_.replacement.graph->nodes()) {
      emit(node);
    }
    Value* result = values_.at(rule_.replacement.graph->outputs().at(0));
    result->setType(anchor_->output()->type());
    anchor_->output()->replaceAllUsesWith(result);
    // Destroy from the last node up: each one's uses are gone by then.
    destroyUnused(anchor_);
  }

 private:
  void emit(const Node* node) {
    std::vector<Value*> operands;
    for (const Value* input : node->inputs()) {
      if (isRest(input)) {
        const auto& rest = rests_.at(input);
        operands.insert(operands.end(), rest.begin(), rest.end());
      } else {
        operands.push_back(values_.at(input));
      }
    }
    const auto kind = kinds_.find(node->kind());
    Node* made = anchor_->owningGraph()->create(
        kind == kinds_.end() ? node->kind() : kind->second, operands, node->outputs().size());
    made->copyAttributes(*node);
    made->insertBefore(anchor_);
    made->copyMetadata(principal_);
    const auto* schema = made->maybeSchema(); // knows types that IR text cannot spell
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      const bool known = schema && !schema->returns().at(i).type()->hasFreeVariables();
      made->output(i)->setType(known ? schema->returns().at(i).type() : node->output(i)->type());
      values_[node->output(i)] = made->output(i);
    }
  }

  void destroyUnused(Node* node) {
    const bool used = std::any_of(node->outputs().begin(), node->outputs().end(), [](const Value* output) {
      return output->hasUses();
    });
    if (used || !alive_.erase(node)) {
      return;
    }
    std::vector<Node*> makers;
    for (Value* input : node->inputs()) {
      makers.push_back(input->node());
    }
    node->destroy();
    for (Node* maker : makers) {
      if (alive_.count(maker)) {
        destroyUnused(maker);
      }
    }
  }

  const Rule& rule_;
  const Match& match_;
  Node* anchor_;
  Node* principal_;
  std::unordered_map<const Value*, Value*> values_;
  std::unordered_map<const Value*, std::vector<Value*>> rests_;
  std::unordered_map<c10::Symbol, c10::Symbol> kinds_;
  std::unordered_set<Node*> alive_; // the matched nodes that are not destroyed yet
};

using RulesByAnchor = std::unordered_map<c10::Symbol, std::vector<const Rule*>>;

RulesByAnchor indexByAnchor(const std::vector<std::shared_ptr<Rule>>& rules) {
  RulesByAnchor index;
  for (const auto& rule : rules) {
    const auto kind = rule->pattern.anchor()->kind();
    const auto found = rule->pattern.alternatives.find(kind);
    if (found == rule->pattern.alternatives.end()) {
      index[kind].push_back(rule.get());
    } else {
      for (const auto alternative : found->second) {
        index[alternative].push_back(rule.get());
      }
    }
  }
  return index;
}

} // namespace

Rule::Rule(
    std::string name, const std::string& pattern, const std::string& replacement, Alternatives alternatives,
    MatchCheck check)
    : name(std::move(name)),
      pattern(pattern, alternatives),
      replacement(replacement, alternatives),
      check(std::move(check)) {
  TORCH_CHECK(
      this->pattern.graph->inputs().size() == this->replacement.graph->inputs().size(), "rule '", this->name,
      "': pattern and replacement take the same values, in the same order");
}

std::vector<Rewrite> rewrite(Graph& graph, const std::vector<std::shared_ptr<Rule>>& rules) {
  const auto index = indexByAnchor(rules);
  std::vector<Rewrite> rewrites;
  forEachNode(graph, [&](Node* node) {
    const auto candidates = index.find(node->kind());
    if (candidates == index.end()) {
      return;
    }
    for (const Rule* rule : candidates->second) {
      const auto match = matchAt(rule->pattern, node);
      if (!match) {
        continue;
      }
      const auto refusal = rule->check ? rule->check(*match, rule->pattern) : std::nullopt;
      rewrites.push_back({rule->name, match->principal(rule->pattern), refusal.value_or("")});
      if (!refusal) {
        Replacer(*rule, *match, node).run();
        return;
      }
    }
  });
  return rewrites;
}

} // namespace jit_passes
