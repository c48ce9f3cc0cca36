#include "alias.h"

#include "alias_classes.h"

namespace jit_passes {
namespace {

// Destroys unused nodes that ask for PyTorch's state, and have no effect. Their schemas do not say so.
bool removeDeadQuestions(Graph& graph) {
  static const auto kinds =
      symbols({"aten::is_grad_enabled", "aten::is_autocast_enabled", "aten::is_autocast_cpu_enabled"});
  const auto dead =
      nodesWhere(graph, [](const Node* node) { return kinds.count(node->kind()) > 0 && !node->hasUses(); });
  std::ranges::for_each(dead, [](Node* node) { node->destroy(); });
  return !dead.empty();
}

} // namespace

void removeDeadNodes(const std::shared_ptr<Graph>& graph) {
  bool hidden = false;
  forEachNode(*graph, [&](const Node* node) { hidden = hidden || returnsHiddenAlias(node->kind()); });
  do {
    if (anyMayWrite(*graph) && !hidden) {
      torch::jit::EliminateDeadCode(graph);
    } else {
      torch::jit::EliminateDeadCode(graph->block());
    }
  } while (removeDeadQuestions(*graph));
}

std::unordered_set<const Value*> writtenValues(const std::shared_ptr<Graph>& graph, bool attributes_apart) {
  if (!anyMayWrite(*graph)) {
    return {};
  }
  const torch::jit::AliasDb aliases(graph, /*isFrozen=*/attributes_apart);
  using Attributes = AliasClasses::Attributes;
  AliasClasses classes(*graph, nullptr, attributes_apart ? Attributes::ByName : Attributes::Any);
  std::unordered_set<const Value*> written;
  forEachValue(graph->block(), [&](const Value* value) {
    if (aliases.hasWriters(value) && classes.isWritten(value)) {
      written.insert(value);
    }
  });
  return written;
}

} // namespace jit_passes
