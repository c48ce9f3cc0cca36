#include "placement.h"

#include "module.h"

namespace jit_passes {
namespace {

// Whether a value can be had earlier: constants, and attributes where none is assigned to.
bool canHoist(const Value* value, bool attributes) {
  const Node* node = value->node();
  return isConstant(value) || (attributes && node->kind() == c10::prim::GetAttr);
}

} // namespace

std::optional<Placement> placementOf(const Match& match, const Pattern& pattern) {
  Placement placement{nullptr, {}};
  Node*& point = placement.point;
  std::unordered_set<const Node*> inside;
  for (const auto& [wanted, node] : match.nodes) {
    inside.insert(node);
    point = point == nullptr || node->isAfter(point) ? node : point;
  }
  for (const Value* output : pattern.graph->outputs()) {
    for (const auto& use : match.values.at(output)->uses()) {
      Node* user = use.user;
      while (user->owningBlock() != point->owningBlock() && user->owningBlock()->owningNode() != nullptr) {
        user = user->owningBlock()->owningNode();
      }
      if (!inside.count(use.user) && user->owningBlock() == point->owningBlock() && user->isBefore(point)) {
        point = user;
      }
    }
  }
  std::optional<bool> attributes;
  const std::function<bool(Value*)> reach = [&](Value* value) {
    Node* node = value->node();
    if (node->kind() == c10::prim::Param || node->isBefore(point)) {
      return true;
    }
    attributes = attributes ? attributes : assignedAttributes(*point->owningGraph()).empty();
    if (!canHoist(value, *attributes) || !std::all_of(node->inputs().begin(), node->inputs().end(), reach)) {
      return false;
    }
    placement.hoisted.push_back(node);
    return true;
  };
  for (const Value* input : pattern.graph->inputs()) {
    for (Value* operand : match.operandsOf(input)) {
      if (!reach(operand)) {
        return std::nullopt;
      }
    }
  }
  return placement;
}

} // namespace jit_passes
