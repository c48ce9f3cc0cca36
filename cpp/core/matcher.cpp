#include "matcher.h"

namespace jit_passes {
namespace {

class Matcher {
 public:
  Matcher(const Pattern& pattern, Node* anchor) : pattern_(pattern), anchor_(anchor) {}

  std::optional<Match> run() {
    if (matchNode(pattern_.anchor(), anchor_) && interiorStaysInside()) {
      return std::move(match_);
    }
    return std::nullopt;
  }

 private:
  bool sameKind(const Node* wanted, const Node* node) const {
    const auto found = pattern_.alternatives.find(wanted->kind());
    return found == pattern_.alternatives.end() ? wanted->kind() == node->kind()
                                                : found->second.count(node->kind()) > 0;
  }

  bool matchNode(const Node* wanted, Node* node) {
    if (const auto known = match_.nodes.find(wanted); known != match_.nodes.end()) {
      return known->second == node;
    }
    if (!sameKind(wanted, node) || node->owningBlock() != anchor_->owningBlock() ||
        wanted->outputs().size() != node->outputs().size() || !node->blocks().empty()) {
      return false;
    }
    match_.nodes.emplace(wanted, node);
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      match_.values.emplace(wanted->output(i), node->output(i));
    }
    return matchOperands(wanted->inputs(), node->inputs());
  }

  bool matchOperands(at::ArrayRef<const Value*> wanted, at::ArrayRef<Value*> operands) {
    const bool rest = !wanted.empty() && isRest(wanted.back());
    const size_t count = wanted.size() - (rest ? 1 : 0);
    if (rest ? operands.size() < count : operands.size() != count) {
      return false;
    }
    for (size_t i = 0; i < count; ++i) {
      if (!matchValue(wanted[i], operands[i])) {
        return false;
      }
    }
    if (rest) {
      match_.rests[wanted.back()] = operands.slice(count).vec();
    }
    return true;
  }

  bool matchValue(const Value* wanted, Value* value) {
    if (const auto known = match_.values.find(wanted); known != match_.values.end()) {
      return known->second == value || sameConstant(known->second, value);
    }
    if (wanted->node()->kind() == c10::prim::Param) {
      match_.values.emplace(wanted, value);
      return true;
    }
    if (isConstant(wanted)) {
      match_.values.emplace(wanted, value);
      return sameConstant(wanted, value);
    }
    return wanted->offset() == value->offset() && matchNode(wanted->node(), value->node());
  }

  static bool sameConstant(const Value* a, const Value* b) {
    if (!isConstant(a) || !isConstant(b)) {
      return false;
    }
    const auto left = torch::jit::toIValue(a), right = torch::jit::toIValue(b);
    if (!left || !right || left->isTensor() != right->isTensor()) {
      return false;
    }
    if (left->isTensor()) {
      return left->toTensor().is_same(right->toTensor());
    }
    // An operator takes 0 where it takes 0.0: clamp(x, 0, 6) and clamp(x, 0., 6.) are the same.
    const auto left_number = constantNumber(a), right_number = constantNumber(b);
    return left_number && right_number ? *left_number == *right_number : *left == *right;
  }

  bool interiorStaysInside() const {
    std::unordered_set<const Node*> inside;
    for (const auto& [wanted, node] : match_.nodes) {
      inside.insert(node);
    }
    for (const auto& [wanted, node] : match_.nodes) {
      if (node == anchor_) {
        continue;
      }
      for (const Value* output : node->outputs()) {
        for (const auto& use : output->uses()) {
          if (!inside.count(use.user)) {
            return false;
          }
        }
      }
    }
    return true;
  }

  const Pattern& pattern_;
  Node* anchor_;
  Match match_;
};

} // namespace

Pattern::Pattern(const std::string& ir, Alternatives alternatives)
    : graph(std::make_shared<Graph>()), alternatives(std::move(alternatives)) {
  std::unordered_map<std::string, Value*> names;
  torch::jit::parseIR(ir, graph.get(), names);
  TORCH_CHECK(graph->outputs().size() == 1, "a pattern returns one value:\n", ir);
  TORCH_CHECK(
      graph->outputs().at(0)->node()->kind() != c10::prim::Param, "a pattern needs at least one operator:\n",
      ir);
}

bool Pattern::mayAnchorAt(c10::Symbol kind) const {
  const auto found = alternatives.find(anchor()->kind());
  return found == alternatives.end() ? anchor()->kind() == kind : found->second.count(kind) > 0;
}

Node* Match::principal(const Pattern& pattern) const {
  for (const Node* node : pattern.graph->nodes()) {
    const auto found = nodes.find(node);
    if (found != nodes.end() && !isHelper(found->second)) {
      return found->second;
    }
  }
  return nodes.at(pattern.anchor());
}

std::optional<Match> matchAt(const Pattern& pattern, Node* node) { return Matcher(pattern, node).run(); }

bool isRest(const Value* value) {
  return value->node()->kind() == c10::prim::Param && value->hasDebugName() &&
         value->debugName().rfind("rest", 0) == 0;
}

} // namespace jit_passes
