#include "pattern.h"

#include "graph/operators.h"
#include "value_match.h"

namespace jit_passes {

Pattern::Pattern(const std::string& text, Alternatives alternatives) : alternatives(std::move(alternatives)) {
  auto read = readGraph(text, this->alternatives, TextOf::Pattern);
  graph = std::move(read.graph);
  typed_ = std::move(read.typed);
  check();
}

Pattern::Pattern(std::shared_ptr<Graph> graph, Alternatives alternatives)
    : graph(std::move(graph)), alternatives(std::move(alternatives)) {
  typed_.insert(this->graph->inputs().begin(), this->graph->inputs().end());
  check();
}

void Pattern::check() {
  for (const Node* node : graph->nodes()) {
    TORCH_CHECK(
        node->blocks().empty(), describe(node),
        " cannot be part of a pattern: branches and loops are not matched, only operators inside of them");
    TORCH_CHECK(
        node->kind() != prim::CallFunction && node->kind() != prim::CallMethod, describe(node),
        " cannot be part of a pattern: it is a call that cannot be inlined");
    if (node->kind() != prim::Constant) {
      nodes_.push_back(node);
    }
  }
  checkRests(*graph);
  TORCH_CHECK(!nodes_.empty(), "a pattern needs at least one operator:\n", graph->toString());
  TORCH_CHECK(graph->outputs().size() > 0, "a pattern returns what it computes:\n", graph->toString());
  for (const Value* output : graph->outputs()) {
    TORCH_CHECK(
        output->node()->kind() != prim::Param && !isConstant(output), "the pattern returns %",
        output->debugName(), ", which none of its operators computes:\n", graph->toString());
  }
  anchor_ = nodes_.back();
  // The nodes that are connected with the results, through operands or uses.
  std::unordered_set<const Node*> reached{anchor_};
  for (bool grew = true; grew;) {
    grew = false;
    for (const Node* node : nodes_) {
      for (const Value* input : node->inputs()) {
        const Node* maker = input->node();
        const bool through_input = maker->kind() == prim::Param;
        const bool linked =
            through_input
                ? std::ranges::any_of(input->uses(), [&](const auto& use) { return reached.count(use.user); })
                : maker->kind() != prim::Constant && (reached.count(maker) || reached.count(node));
        if (linked) {
          grew |= reached.insert(node).second;
          if (!through_input) {
            grew |= reached.insert(maker).second;
          }
        }
      }
    }
  }
  for (const Node* node : nodes_) {
    TORCH_CHECK(
        reached.count(node), describe(node), " of the pattern has no connection to its other nodes:\n",
        graph->toString());
    const bool used =
        std::ranges::any_of(node->outputs(), [](const Value* output) { return output->hasUses(); });
    TORCH_CHECK(used, "the pattern does not use the result of ", describe(node), ":\n", graph->toString());
  }
  findExchanges();
}

void Pattern::findExchanges() {
  for (const Node* node : nodes_) {
    const auto operands = node->inputs();
    const size_t fixed = operands.size() - (!operands.empty() && isRest(operands.back()) ? 1 : 0);
    const auto found = alternatives.find(node->kind());
    const bool may_commute = found == alternatives.end() ? mayCommute(node->kind())
                                                         : std::ranges::any_of(found->second, mayCommute);
    if (may_commute && fixed >= 2 && operands[0] != operands[1]) {
      exchanged_.emplace(node, differ(operands[0], operands[1]));
    }
  }
}

// Whether two values of the pattern are computed differently. Two inputs with no other use do not differ.
bool Pattern::differ(const Value* a, const Value* b) const {
  const Node *left = a->node(), *right = b->node();
  if (a == b) {
    return false;
  }
  if (left->kind() == prim::Constant && right->kind() == prim::Constant) {
    return !sameConstant(a, b);
  }
  if (left->kind() != right->kind() || a->uses().size() != 1 || b->uses().size() != 1) {
    return true;
  }
  if (left->kind() == prim::Param) {
    return isRest(a) || isRest(b) || isTyped(a) != isTyped(b) || (isTyped(a) && *a->type() != *b->type());
  }
  const auto operands = left->inputs(), others = right->inputs();
  bool found =
      operands.size() != others.size() || left->outputs().size() != 1 || right->outputs().size() != 1;
  for (size_t i = 0; !found && i < operands.size(); ++i) {
    found = differ(operands[i], others[i]);
  }
  return found;
}

bool Pattern::mayExchange(const Node* wanted, bool named) const {
  const auto found = exchanged_.find(wanted);
  return found != exchanged_.end() && (named || found->second);
}

bool Pattern::exchanges(bool named) const {
  return std::ranges::any_of(exchanged_, [&](const auto& row) { return named || row.second; });
}

bool Pattern::mayBe(const Node* wanted, c10::Symbol kind) const {
  const auto found = alternatives.find(wanted->kind());
  return found == alternatives.end() ? wanted->kind() == kind : found->second.count(kind) > 0;
}

std::string inputName(const Value* input) {
  const auto name = input->debugName();
  return name.substr(name.rfind('#', 0) == 0 ? 1 : 0);
}

void checkRests(Graph& graph) {
  for (const Value* input : graph.inputs()) {
    for (const auto& use : input->uses()) {
      const bool last = use.user->kind() != prim::Return && use.user->owningBlock() == graph.block() &&
                        use.user->blocks().empty() && use.offset + 1 == use.user->inputs().size();
      TORCH_CHECK(
          last || !isRest(input), "%", inputName(input),
          " stands for all further operands: it can only be the last operand of an operator, outside of "
          "branches and loops");
    }
  }
}

bool isRest(const Value* value) {
  return value->node()->kind() == prim::Param && value->hasDebugName() &&
         value->debugName().rfind("rest", 0) == 0;
}

} // namespace jit_passes
