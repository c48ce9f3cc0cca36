#include "matcher.h"

#include "graph/alias.h"
#include "graph/operators.h"
#include "operand_orders.h"

namespace jit_passes {
namespace {

// Limit for one match. In a large pattern, equal operands may have too many orders to try all.
constexpr size_t kMostExchanges = 1000;

// A goal left to match: a value with a value, or a node with a node, then the next one.
struct Goal {
  const Value* wanted;
  Value* value;
  const Node* user; // of the value, and which of its operands it is
  size_t operand;
  const Goal* next;
  const Node* wanted_node = nullptr;
  Node* node = nullptr;
};

class Matcher {
 public:
  Matcher(const Pattern& pattern, Node* anchor, const MatchOptions& options, Accept accept, NearMiss* miss)
      : pattern_(pattern),
        anchor_(anchor),
        options_(options),
        accept_(accept),
        miss_(miss),
        orders_(pattern, options, match_) {}

  std::optional<Match> run() {
    const Goal goal{nullptr, nullptr, nullptr, 0, nullptr, pattern_.anchor(), anchor_};
    return solve(&goal) ? std::optional(std::move(match_)) : std::nullopt;
  }

 private:
  // Keeps the failure with the most matched nodes. Its text is made only if a near miss is asked for.
  template <typename Reason>
  bool fail(Reason reason) {
    if (miss_ != nullptr && (miss_->reason.empty() || match_.nodes.size() > miss_->matched)) {
      miss_->matched = match_.nodes.size();
      miss_->reason = reason();
    }
    return false;
  }

  // Reaches the goals one after another, then the operands of nodes that were put off because both orders may match:
  // by then the bindings mostly leave one order. After a failure nothing stays bound.
  bool solve(const Goal* goal, const Goal* put_off = nullptr) {
    const size_t values = bound_values_.size(), nodes = bound_nodes_.size(), goals = goals_.size();
    if (reach(goal, put_off)) {
      return true;
    }
    unbind(values, nodes, goals);
    return false;
  }

  bool reach(const Goal* goal, const Goal* put_off) {
    while (true) {
      while (goal != nullptr) {
        if (!step(goal, put_off)) {
          return false;
        }
      }
      if (put_off == nullptr) {
        return matchOthers();
      }
      const auto [wanted, node, orders] = takeFrom(put_off);
      if (orders == kEither) {
        return solve(operandsOf(wanted, node, kAsWritten, nullptr), put_off) ||
               (canExchangeMore() && solve(operandsOf(wanted, node, kExchanged, nullptr), put_off));
      }
      goal = operandsOf(wanted, node, orders, nullptr);
    }
  }

  // Reaches one goal, and moves on to the next one, often an operand of this one.
  bool step(const Goal*& goal, const Goal*& put_off) {
    const Node* wanted = goal->wanted_node;
    Node* node = goal->node;
    if (wanted == nullptr) {
      if (!matchValue(*goal)) {
        return false;
      }
      if (!isComputed(goal->wanted)) {
        goal = goal->next;
        return true;
      }
      wanted = goal->wanted->node();
      node = goal->value->node();
    }
    goal = goal->next;
    if (const auto known = match_.nodes.find(wanted); known != match_.nodes.end()) {
      return known->second == node || fail([&] {
               return describe(node) + " stands where " + describe(known->second) + " was matched";
             });
    }
    if (!matchNode(wanted, node)) {
      return false;
    }
    const auto orders = orders_.of(wanted, node);
    if (orders == kEither) {
      put_off = &goals_.emplace_back(Goal{nullptr, nullptr, nullptr, 0, put_off, wanted, node});
    } else {
      goal = operandsOf(wanted, node, orders, goal);
    }
    return true;
  }

  // Takes one of the nodes that were put off, by preference a node for which the bindings leave a single order.
  std::tuple<const Node*, Node*, OperandOrder> takeFrom(const Goal*& put_off) {
    const Goal* chosen = put_off;
    auto orders = kEither;
    for (const Goal* goal = put_off; goal != nullptr && orders == kEither; goal = goal->next) {
      orders = orders_.of(goal->wanted_node, goal->node);
      chosen = orders == kEither ? chosen : goal;
    }
    const Goal* others = chosen->next;
    for (const Goal* goal = put_off; goal != chosen; goal = goal->next) {
      others =
          &goals_.emplace_back(Goal{nullptr, nullptr, nullptr, 0, others, goal->wanted_node, goal->node});
    }
    put_off = others;
    return {chosen->wanted_node, chosen->node, orders};
  }

  bool canExchangeMore() {
    if (++exchanged_ <= kMostExchanges) {
      return true;
    }
    if (miss_ != nullptr) {
      miss_->reason = "its operands can be exchanged in too many ways to try all";
    }
    return false;
  }

  static bool isComputed(const Value* wanted) {
    return wanted->node()->kind() != prim::Param && !isConstant(wanted);
  }

  // Whether the value fits, without the node that computes it, which is matched next.
  bool matchValue(const Goal& goal) {
    const Value* wanted = goal.wanted;
    Value* value = goal.value;
    const auto place = [&] {
      const bool element = goal.user->kind() == prim::Constant;
      return (element ? "element " : "operand ") + std::to_string(goal.operand) + " of " +
             describe(goal.user);
    };
    if (const auto known = match_.values.find(wanted); known != match_.values.end()) {
      return known->second == value || sameConstant(known->second, value) ||
             fail([&] { return place() + " is not the %" + inputName(wanted) + " matched before"; });
    }
    if (wanted->node()->kind() == prim::Param) {
      if (pattern_.isTyped(wanted) && !hasTypeOf(wanted, value, options_.attribute)) {
        return fail([&] {
          return place() + " is " + typeOf(value, options_.attribute) + ", not " +
                 wanted->type()->annotation_str();
        });
      }
      bind(wanted, value);
      return true;
    }
    if (isConstant(wanted)) {
      bind(wanted, value);
      return isConstantOf(wanted, value, options_.attribute) || fail([&] {
               const bool changes = value->node()->kind() == prim::GetAttr && !isNone(wanted);
               return place() + " is " + textOf(value, options_.attribute) + ", not " +
                      textOf(wanted, options_.attribute) +
                      (changes ? ": take it as an input, and compare match.constants in a check" : "");
             });
    }
    if (value->node()->kind() == prim::Param) {
      return fail(
          [&] { return place() + " is an argument where the pattern has " + nameOf(wanted->node()); });
    }
    return wanted->offset() == value->offset() ||
           fail([&] { return place() + " is another result of " + describe(value->node()); });
  }

  // Whether the node fits, without its operands.
  bool matchNode(const Node* wanted, Node* node) {
    const bool list = isConstantList(wanted, node);
    if (!list && !pattern_.mayBe(wanted, node->kind())) {
      return fail([&] { return "it has " + describe(node) + " where the pattern has " + nameOf(wanted); });
    }
    if (!list && node->owningBlock() != anchor_->owningBlock()) {
      return fail([&] { return describe(node) + " stands in another block"; });
    }
    if (wanted->outputs().size() != node->outputs().size() || !node->blocks().empty()) {
      return fail([&] { return describe(node) + " has another number of results than the pattern"; });
    }
    if (taken(node) && (isRandom(node) || mayWrite(node))) {
      return fail([&] { return describe(node) + " cannot stand for two operators of the pattern"; });
    }
    match_.nodes.emplace(wanted, node);
    bound_nodes_.push_back(wanted);
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      bind(wanted->output(i), node->output(i));
    }
    return list || matchCount(wanted, node);
  }

  // Whether the number of operands fits. Binds %rest to the remaining operands.
  bool matchCount(const Node* wanted, Node* node) {
    const auto operands = node->inputs();
    const bool rest = hasRest(wanted);
    const size_t count = wanted->inputs().size() - (rest ? 1 : 0);
    if (rest ? operands.size() < count : operands.size() != count) {
      return fail([&] {
        return describe(node) + " has " + std::to_string(operands.size()) +
               " operands where the pattern has " + (rest ? "at least " : "") + std::to_string(count);
      });
    }
    if (!rest) {
      return true;
    }
    const auto tail = operands.slice(count).vec();
    const auto [known, inserted] = match_.rests.emplace(wanted->inputs().back(), tail);
    if (inserted) {
      bound_values_.push_back(wanted->inputs().back());
    }
    return inserted || known->second == tail ||
           fail([&] { return describe(node) + " has other remaining operands"; });
  }

  // Puts goals for the node's operands in front of `next`.
  const Goal* operandsOf(const Node* wanted, Node* node, OperandOrder order, const Goal* next) {
    const bool list = node->kind() == prim::Constant;
    const size_t count = wanted->inputs().size() - (hasRest(wanted) ? 1 : 0);
    for (size_t i = count; i-- > 0;) {
      const size_t operand = order == kExchanged && i < 2 ? 1 - i : i;
      Value* value = list ? elementOf(node, i) : node->input(operand);
      next = &goals_.emplace_back(Goal{wanted->input(i), value, node, operand, next});
    }
    return next;
  }

  // An element of a constant list has no value of its own in the graph, so it gets one in a graph beside it.
  Value* elementOf(const Node* list, size_t index) {
    if (!match_.elements) {
      match_.elements = std::make_shared<Graph>();
    }
    return match_.elements->insertConstant(constantOf(list->output())->toListRef()[index]);
  }

  // Matches nodes that no operand leads to, among the users of matched values in program order.
  bool matchOthers() {
    for (const Node* wanted : pattern_.nodes()) {
      if (match_.nodes.count(wanted)) {
        continue;
      }
      for (size_t i = 0; i < wanted->inputs().size(); ++i) {
        const auto bound = match_.values.find(wanted->input(i));
        if (bound != match_.values.end() && !isConstant(bound->second)) {
          return tryUsers(wanted, bound->second, i);
        }
      }
    }
    if (match_.nodes.size() < pattern_.nodes().size()) {
      return false; // not connected: Pattern refuses these
    }
    if (!interiorStaysInside()) {
      return false;
    }
    ++complete_;
    return accept_(match_);
  }

  bool tryUsers(const Node* wanted, Value* value, size_t operand) {
    const bool either = operand < 2 && orders_.mayExchange(wanted);
    std::vector<Node*> users;
    for (const auto& use : value->uses()) {
      const bool fits = use.offset == operand || (either && use.offset == 1 - operand && commutes(use.user));
      if (fits && use.user->owningBlock() == anchor_->owningBlock() && !taken(use.user)) {
        users.push_back(use.user);
      }
    }
    std::ranges::sort(users, [](Node* a, Node* b) { return a->isBefore(b); });
    users.erase(std::unique(users.begin(), users.end()), users.end());
    if (users.empty()) {
      return fail([&] { return "no further user of the value fits " + nameOf(wanted); });
    }
    const size_t complete = complete_;
    for (Node* user : users) {
      const Goal goal{nullptr, nullptr, nullptr, 0, nullptr, wanted, user};
      if (solve(&goal)) {
        return true;
      }
      if (complete_ > complete) { // the first match was not accepted
        return false;
      }
    }
    return false;
  }

  bool taken(const Node* node) const {
    return std::ranges::any_of(match_.nodes, [&](const auto& pair) { return pair.second == node; });
  }

  void bind(const Value* wanted, Value* value) {
    match_.values.emplace(wanted, value);
    bound_values_.push_back(wanted);
  }

  void unbind(size_t values, size_t nodes, size_t goals) {
    for (; bound_values_.size() > values; bound_values_.pop_back()) {
      match_.values.erase(bound_values_.back());
      match_.rests.erase(bound_values_.back());
    }
    for (; bound_nodes_.size() > nodes; bound_nodes_.pop_back()) {
      match_.nodes.erase(bound_nodes_.back());
    }
    goals_.resize(goals);
  }

  std::string nameOf(const Node* wanted) const {
    const auto found = pattern_.alternatives.find(wanted->kind());
    if (found == pattern_.alternatives.end()) {
      return wanted->kind().toQualString();
    }
    std::set<std::string> names;
    for (const auto kind : found->second) {
      names.insert(kind.toQualString());
    }
    return c10::Join(" or ", std::vector<std::string>(names.begin(), names.end()));
  }

  bool interiorStaysInside() {
    std::unordered_set<const Node*> inside;
    for (const auto& [wanted, node] : match_.nodes) {
      inside.insert(node);
    }
    std::unordered_set<const Value*> results;
    for (const Value* output : pattern_.graph->outputs()) {
      results.insert(match_.values.at(output));
    }
    for (const Value* input : pattern_.graph->inputs()) {
      const auto found = match_.values.find(input);
      if (found != match_.values.end() && results.count(found->second)) {
        return fail([&] {
          return "%" + inputName(input) + " would be the result of " + describe(found->second->node()) +
                 ", which is matched too";
        });
      }
    }
    for (const Node* wanted : pattern_.nodes()) {
      for (const Value* output : match_.nodes.at(wanted)->outputs()) {
        for (const auto& use : output->uses()) {
          if (!inside.count(use.user) && !results.count(output) && !isConstant(output)) {
            return fail([&] {
              return "the result of " + describe(output->node()) + " is used by " + describe(use.user) +
                     " too";
            });
          }
        }
      }
    }
    return true;
  }

  const Pattern& pattern_;
  Node* anchor_;
  const MatchOptions& options_;
  Accept accept_;
  NearMiss* miss_;
  size_t exchanged_ = 0; // how often operands were exchanged
  size_t complete_ = 0;  // matches that `accept_` was asked about
  Match match_;
  std::vector<const Value*> bound_values_; // in the order in which they were bound
  std::vector<const Node*> bound_nodes_;
  std::deque<Goal> goals_;
  OperandOrders orders_;
};

// Whether the pattern fails at the last node or its operands, as most rules do. Allocates nothing.
bool cannotMatch(const Pattern& pattern, const Node* node, const MatchOptions& options) {
  if (!pattern.mayAnchorAt(node->kind())) {
    return true;
  }
  const auto wanted = pattern.anchor()->inputs();
  const auto operands = node->inputs();
  const auto fits = [&](size_t i, size_t operand) {
    const Node* maker = wanted[i]->node();
    return maker->kind() == prim::Param || maker->kind() == prim::Constant ||
           pattern.mayBe(maker, operands[operand]->node()->kind()) ||
           isConstantList(maker, operands[operand]->node());
  };
  const size_t count = std::min(wanted.size(), operands.size());
  const bool either = options.commutative && count >= 2 &&
                      pattern.mayExchange(pattern.anchor(), options.named) && commutes(node);
  for (size_t i = either ? 2 : 0; i < count; ++i) {
    if (!fits(i, i)) {
      return true;
    }
  }
  return either && !(fits(0, 0) && fits(1, 1)) && !(fits(0, 1) && fits(1, 0));
}

} // namespace

std::optional<Match> matchAt(
    const Pattern& pattern, Node* node, const MatchOptions& options, Accept accept, NearMiss* miss) {
  if (miss == nullptr && cannotMatch(pattern, node, options)) {
    return std::nullopt;
  }
  return Matcher(pattern, node, options, accept, miss).run();
}

} // namespace jit_passes
