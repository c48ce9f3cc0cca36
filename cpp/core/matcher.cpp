#include "matcher.h"

#include "alias.h"
#include "operators.h"

namespace jit_passes {
namespace {

class Matcher {
 public:
  Matcher(const Pattern& pattern, Node* anchor, NearMiss* miss)
      : pattern_(pattern), anchor_(anchor), miss_(miss) {}

  std::optional<Match> run() {
    if (matchNode(pattern_.anchor(), anchor_) && matchOthers()) {
      return std::move(match_);
    }
    return std::nullopt;
  }

 private:
  // Of all failures the one that came furthest is kept; the text is made only when asked for.
  template <typename Reason>
  bool fail(Reason reason) {
    if (miss_ != nullptr && (miss_->reason.empty() || match_.nodes.size() > miss_->matched)) {
      miss_->matched = match_.nodes.size();
      miss_->reason = reason();
    }
    return false;
  }

  bool matchNode(const Node* wanted, Node* node) {
    if (const auto known = match_.nodes.find(wanted); known != match_.nodes.end()) {
      return known->second == node || fail([&] {
               return describe(node) + " stands where " + describe(known->second) + " was matched";
             });
    }
    if (!pattern_.mayBe(wanted, node->kind())) {
      return fail([&] { return "it has " + describe(node) + " where the pattern has " + nameOf(wanted); });
    }
    if (node->owningBlock() != anchor_->owningBlock()) {
      return fail([&] { return describe(node) + " stands in another block"; });
    }
    if (wanted->outputs().size() != node->outputs().size() || !node->blocks().empty()) {
      return fail([&] { return describe(node) + " has another number of results than the pattern"; });
    }
    if (taken(node) && (isRandom(node) || mayWrite(node))) {
      return fail([&] { return describe(node) + " cannot stand for two operators of the pattern"; });
    }
    match_.nodes.emplace(wanted, node);
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      match_.values.emplace(wanted->output(i), node->output(i));
    }
    return matchOperands(wanted, node);
  }

  bool matchOperands(const Node* user, Node* node) {
    const auto wanted = user->inputs();
    const auto operands = node->inputs();
    const bool rest = !wanted.empty() && isRest(wanted.back());
    const size_t count = wanted.size() - (rest ? 1 : 0);
    if (rest ? operands.size() < count : operands.size() != count) {
      return fail([&] {
        return describe(node) + " has " + std::to_string(operands.size()) +
               " operands where the pattern has " + (rest ? "at least " : "") + std::to_string(count);
      });
    }
    for (size_t i = 0; i < count; ++i) {
      if (!matchValue(wanted[i], operands[i], node, i)) {
        return false;
      }
    }
    if (!rest) {
      return true;
    }
    const auto tail = operands.slice(count).vec();
    const auto [known, inserted] = match_.rests.emplace(wanted.back(), tail);
    return inserted || known->second == tail ||
           fail([&] { return describe(node) + " has other remaining operands"; });
  }

  bool matchValue(const Value* wanted, Value* value, const Node* user, size_t operand) {
    const auto place = [&] { return "operand " + std::to_string(operand) + " of " + describe(user); };
    if (const auto known = match_.values.find(wanted); known != match_.values.end()) {
      return known->second == value || sameConstant(known->second, value) ||
             fail([&] { return place() + " is not the %" + inputName(wanted) + " matched before"; });
    }
    if (wanted->node()->kind() == prim::Param) {
      if (pattern_.isTyped(wanted) && !fitsType(wanted, value)) {
        return fail([&] {
          return place() + " is of type " + value->type()->annotation_str() + ", not " +
                 wanted->type()->annotation_str();
        });
      }
      match_.values.emplace(wanted, value);
      return true;
    }
    if (isConstant(wanted)) {
      const bool both_none = isNone(wanted) && isNone(value);
      match_.values.emplace(wanted, value);
      return both_none || sameConstant(wanted, value) || fail([&] {
               return place() + " is " + textOf(value) + ", not " + textOf(const_cast<Value*>(wanted));
             });
    }
    if (value->node()->kind() == prim::Param) {
      return fail(
          [&] { return place() + " is an argument where the pattern has " + nameOf(wanted->node()); });
    }
    if (wanted->offset() != value->offset()) {
      return fail([&] { return place() + " is another result of " + describe(value->node()); });
    }
    return matchNode(wanted->node(), value->node());
  }

  // A whole number counts as a float, as it does in PyTorch's operators.
  static bool fitsType(const Value* wanted, const Value* value) {
    return value->type()->isSubtypeOf(*wanted->type()) ||
           (isConstant(value) && wanted->type()->kind() == c10::TypeKind::FloatType &&
            value->type()->kind() == c10::TypeKind::IntType);
  }

  // Nodes that no operand leads to: users of what has been matched, tried in program order.
  bool matchOthers() {
    const Node* missing = nullptr;
    for (const Node* wanted : pattern_.nodes()) {
      if (match_.nodes.count(wanted)) {
        continue;
      }
      missing = wanted;
      for (size_t i = 0; i < wanted->inputs().size(); ++i) {
        const auto bound = match_.values.find(wanted->input(i));
        if (bound != match_.values.end() && !isConstant(bound->second)) {
          return tryUsers(wanted, bound->second, i);
        }
      }
    }
    if (missing != nullptr) {
      return false; // not connected: Pattern refuses these
    }
    return interiorStaysInside();
  }

  bool tryUsers(const Node* wanted, Value* value, size_t operand) {
    std::vector<Node*> users;
    for (const auto& use : value->uses()) {
      if (use.offset == operand && use.user->owningBlock() == anchor_->owningBlock() && !taken(use.user)) {
        users.push_back(use.user);
      }
    }
    std::ranges::sort(users, [](Node* a, Node* b) { return a->isBefore(b); });
    if (users.empty()) {
      return fail([&] { return "no further user of the value fits " + nameOf(wanted); });
    }
    const Match saved = match_;
    for (Node* user : users) {
      if (matchNode(wanted, user) && matchOthers()) {
        return true;
      }
      match_ = saved;
    }
    return false;
  }

  bool taken(const Node* node) const {
    return std::ranges::any_of(match_.nodes, [&](const auto& pair) { return pair.second == node; });
  }

  static bool sameConstant(const Value* a, const Value* b) {
    if (!isConstant(a) || !isConstant(b)) {
      return false;
    }
    const auto left = constantOf(a), right = constantOf(b);
    if (!left || !right || left->isTensor() != right->isTensor()) {
      return false;
    }
    if (left->isTensor()) {
      return left->toTensor().is_same(right->toTensor());
    }
    // An operator takes 0 where it takes 0.0: clamp(x, 0, 6) and clamp(x, 0., 6.) are the same.
    if (left->isInt() && right->isInt()) {
      return left->toInt() == right->toInt();
    }
    const auto left_number = constantNumber(a), right_number = constantNumber(b);
    return left_number && right_number ? *left_number == *right_number : *left == *right;
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

  static std::string textOf(const Value* value) {
    if (isNone(value)) {
      return "None";
    }
    const auto constant = constantOf(value);
    if (!constant || constant->isTensor()) {
      return constant ? "a constant tensor" : "the result of " + describe(value->node());
    }
    std::ostringstream text;
    text << *constant;
    return text.str();
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
          if (!inside.count(use.user) && !results.count(output)) {
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
  NearMiss* miss_;
  Match match_;
};
// Most rules fail at the anchor's operands: looked at before anything is allocated.
bool cannotMatch(const Pattern& pattern, const Node* node) {
  if (!pattern.mayAnchorAt(node->kind())) {
    return true;
  }
  const auto wanted = pattern.anchor()->inputs();
  const auto operands = node->inputs();
  for (size_t i = 0; i < wanted.size() && i < operands.size(); ++i) {
    const Node* maker = wanted[i]->node();
    if (maker->kind() != prim::Param && maker->kind() != prim::Constant &&
        !pattern.mayBe(maker, operands[i]->node()->kind())) {
      return true;
    }
  }
  return false;
}

} // namespace

std::vector<Value*> Match::operandsOf(const Value* input) const {
  if (const auto found = rests.find(input); found != rests.end()) {
    return found->second;
  }
  const auto found = values.find(input);
  return found == values.end() ? std::vector<Value*>() : std::vector<Value*>{found->second};
}

Node* Match::principal(const Pattern& pattern) const {
  for (const Node* wanted : pattern.nodes()) {
    Node* node = nodes.at(wanted);
    if (!isQuantization(node)) {
      return node;
    }
  }
  return nodes.at(pattern.anchor());
}

std::optional<Match> matchAt(const Pattern& pattern, Node* node, NearMiss* miss) {
  if (miss == nullptr && cannotMatch(pattern, node)) {
    return std::nullopt;
  }
  return Matcher(pattern, node, miss).run();
}

} // namespace jit_passes
