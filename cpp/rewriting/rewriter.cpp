#include "rewriter.h"

#include "alias_check.h"
#include "graph/names.h"
#include "replacer.h"
#include "rule_search.h"

namespace jit_passes {
namespace {

using NodeSet = std::unordered_set<const Node*>;

constexpr size_t kManyUses = 32; // so many users of a result are left to the next walk

using RulesByAnchor = std::unordered_map<c10::Symbol, std::vector<const Rule*>>;

RulesByAnchor indexByAnchor(const Rules& rules) {
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

// The chain of rules that has made a node, each from the result of the one before. A cycle shows in it.
struct Origin {
  const Rule* rule;
  std::shared_ptr<const Origin> parent;
  size_t length;

  Origin(const Rule* rule, std::shared_ptr<const Origin> parent, size_t length)
      : rule(rule), parent(std::move(parent)), length(length) {}
  Origin(const Origin&) = delete;
  Origin& operator=(const Origin&) = delete;
  ~Origin() { // in a loop: recursion over a chain as long as the graph would overflow the stack
    for (auto next = std::move(parent); next && next.use_count() == 1;) {
      next = std::move(std::const_pointer_cast<Origin>(next)->parent);
    }
  }
};

class Rewriter {
 public:
  Rewriter(PassContext& context, const Rules& rules)
      : context_(context),
        graph_(context.graph()),
        attribute_(attributesOf(context)),
        index_(indexByAnchor(rules)),
        written_(context) {
    for (const auto& rule : rules) {
      reach_ = std::max(reach_, rule->pattern.nodes().size());
    }
    std::vector<const Rule*> all;
    std::transform(
        rules.begin(), rules.end(), std::back_inserter(all), [](const auto& r) { return r.get(); });
    aliases_ = aliasesOf(context, all);
    bound_ += nodesInOrder(*graph_).size();
  }

  std::vector<Rewrite> run() {
    // New nodes of a rewrite are visited again at once. The last walk changes nothing, so a further run would not
    // either.
    for (bool changed = true; changed;) {
      changed = false;
      refused_.clear();
      const auto nodes = nodesInOrder(*graph_);
      present_.insert(nodes.begin(), nodes.end());
      std::deque<Node*> queue(nodes.begin(), nodes.end());
      while (!queue.empty()) {
        Node* node = queue.front();
        queue.pop_front();
        if (present_.count(node) && visit(node)) {
          changed = true;
          queue.insert(queue.begin(), again_.begin(), again_.end());
          again_.clear();
        }
      }
    }
    done_.insert(done_.end(), refused_.begin(), refused_.end());
    return std::move(done_);
  }

 private:
  bool visit(Node* node) {
    const auto candidates = index_.find(node->kind());
    if (candidates == index_.end()) {
      return false;
    }
    for (const Rule* rule : candidates->second) {
      std::optional<Rewrite> record; // the first match's
      std::optional<Placement> placement;
      const auto accept = [&](const Match& match) {
        if (passesOver(match, *rule)) {
          return false;
        }
        if (!names_) {
          names_ = nodeNames(*graph_);
        }
        placement = placementOf(match, rule->pattern);
        const MatchView view{match, rule->pattern, context_, attribute_, written_};
        auto refused = refusalOf(view, aliases_, *rule, placement);
        if (!record || !refused) {
          const Node* principal = match.principal(rule->pattern);
          record = {rule->name, nameOf(principal), sourceLine(principal), refused.value_or("")};
        }
        return !refused;
      };
      const auto match = matchAt(rule->pattern, node, matchOptions(*rule, attribute_), accept);
      if (match) {
        apply(*rule, *match, *placement);
        done_.push_back(*record);
        return true;
      }
      if (record && !record->refused.empty()) {
        refused_.push_back(*record);
      }
    }
    return false;
  }

  void apply(const Rule& rule, const Match& match, const Placement& placement) {
    auto origin = std::make_shared<Origin>(&rule, nullptr, 1);
    std::vector<Value*> operands;
    for (const Node* wanted : rule.pattern.nodes()) {
      Node* node = match.nodes.at(wanted);
      const auto made_by = origins_.find(node);
      if (made_by != origins_.end() && made_by->second->length >= origin->length) {
        origin = std::make_shared<Origin>(&rule, made_by->second, made_by->second->length + 1);
      }
      operands.insert(operands.end(), node->inputs().begin(), node->inputs().end());
    }
    TORCH_CHECK(
        origin->length <= bound_, "rules rewrite each other's results without end at ",
        describe(match.principal(rule.pattern)), ": ", cycleOf(*origin),
        "; give one of them a check that refuses what another one makes, or repeat=False, so that it "
        "leaves alone what it has made itself, or commutative=False where they exchange operands");
    const auto name = nameOf(match.principal(rule.pattern));
    const auto forget = [&](Node* node) {
      present_.erase(node);
      origins_.erase(node);
      names_->erase(node);
      for (const Value* output : node->outputs()) {
        std::erase(operands, output);
      }
    };
    const MatchView view{match, rule.pattern, context_, attribute_, written_};
    const auto made = replaceMatch(rule, view, placement, aliases_ ? &*aliases_ : nullptr, forget);
    NodeSet seen;
    for (Node* node : made) {
      present_.insert(node);
      origins_[node] = origin;
      names_->emplace(node, name);
      lookAgain(node, seen, reach_);
    }
    for (Value* operand : operands) { // another rule may match once this use is gone
      if (!isConstant(operand) && operand->node()->kind() != prim::Param &&
          operand->node()->kind() != prim::GetAttr) {
        lookAgain(operand->node(), seen, reach_);
      }
    }
  }

  // The node, and nodes from which a pattern could reach it.
  void lookAgain(Node* node, NodeSet& seen, size_t distance) {
    if (!seen.insert(node).second) {
      return;
    }
    again_.push_back(node);
    for (Value* output : distance > 1 ? node->outputs() : at::ArrayRef<Value*>()) {
      if (isConstant(output) || output->uses().size() > kManyUses) {
        continue;
      }
      for (const auto& use : output->uses()) {
        if (use.user->kind() != prim::Return) {
          lookAgain(use.user, seen, distance - 1);
        }
      }
    }
  }

  std::string nameOf(const Node* node) const {
    const auto found = names_->find(node);
    return found == names_->end() ? "" : found->second;
  }

  // Whether to skip a match because the rule itself has made its nodes. Without `repeat`, a single one is enough.
  // With `repeat`, the rule must have made all of them, and their operands match exchanged: a rule that exchanges
  // operands would not end otherwise.
  bool passesOver(const Match& match, const Rule& rule) const {
    const auto is_own = [&](const auto& matched) {
      const auto found = origins_.find(matched.second);
      const Origin* origin = found == origins_.end() ? nullptr : found->second.get();
      while (origin != nullptr && origin->rule != &rule) {
        origin = origin->parent.get();
      }
      return origin != nullptr;
    };
    return rule.repeat ? match.isExchanged(rule.pattern) && std::ranges::all_of(match.nodes, is_own)
                       : std::ranges::any_of(match.nodes, is_own);
  }

  // "'a' -> 'b' -> 'a'": the shortest repetition at the end of the chain.
  static std::string cycleOf(const Origin& last) {
    std::vector<const Rule*> chain;
    for (const Origin* origin = &last; origin != nullptr; origin = origin->parent.get()) {
      chain.push_back(origin->rule);
    }
    size_t period = 1;
    const auto repeats = [&] {
      for (size_t i = 0; i + period < chain.size(); ++i) {
        if (chain[i] != chain[i + period]) {
          return false;
        }
      }
      return true;
    };
    while (period + 1 < chain.size() && !repeats()) {
      ++period;
    }
    std::string text;
    for (size_t i = std::min(period, chain.size() - 1) + 1; i-- > 0;) {
      text += (text.empty() ? "'" : " -> '") + chain[i]->name + "'";
    }
    return text;
  }

  PassContext& context_;
  std::shared_ptr<Graph> graph_;
  ReadAttribute attribute_;
  RulesByAnchor index_;
  std::optional<NodeNames> names_; // from when the first rule matches: most rules never do
  std::optional<AliasClasses> aliases_;
  WrittenValues written_;
  size_t reach_ = 1;   // nodes of the largest pattern
  size_t bound_ = 100; // limit of a chain of rewrites; a chain that only shrinks the graph is shorter
  std::unordered_set<const Node*> present_;
  std::unordered_map<const Node*, std::shared_ptr<const Origin>> origins_;
  std::vector<Rewrite> refused_; // of the last walk, which visits every node once
  std::vector<Node*> again_;
  std::vector<Rewrite> done_;
};

} // namespace

std::vector<Rewrite> rewrite(PassContext& context, const Rules& rules) {
  return Rewriter(context, rules).run();
}

Rules rulesOf(const std::string& name, const std::vector<RuleText>& texts) {
  Rules rules;
  for (const RuleText& text : texts) {
    auto rule = std::make_shared<Rule>(
        name, Pattern(text.pattern, text.alternatives),
        readGraph(text.replacement, text.alternatives, TextOf::Replacement).graph);
    rule->check = text.check;
    rule->compute = text.compute;
    rule->same_memory = text.same_memory;
    rules.push_back(std::move(rule));
  }
  return rules;
}

PassFunction passOf(const Rules& rules) {
  return [rules](PassContext& context) {
    const auto rewrites = rewrite(context, rules);
    std::set<std::string> rewritten;
    for (const auto& record : rewrites) {
      if (record.refused.empty()) {
        rewritten.insert(record.name);
      }
    }
    std::set<std::pair<std::string, std::string>> said; // several rules may give one reason
    for (const auto& record : rewrites) {
      if (!record.refused.empty() && !rewritten.count(record.name) &&
          said.emplace(record.name, record.refused).second) {
        context.remark({record.name, record.refused});
      }
    }
    return !rewritten.empty();
  };
}

RegisterRules::RegisterRules(
    std::string name, std::string summary, std::vector<RuleText> texts, std::vector<std::string> requires_) {
  const auto rules = std::make_shared<std::optional<Rules>>();
  const auto once = std::make_shared<std::once_flag>();
  RegisterPass(
      name, std::move(summary),
      [=](PassContext& context) { // the operators of the rules are registered by now
        std::call_once(*once, [&] { *rules = rulesOf(name, texts); });
        return passOf(**rules)(context);
      },
      std::move(requires_));
}

} // namespace jit_passes
