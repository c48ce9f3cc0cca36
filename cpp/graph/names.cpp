#include "names.h"

#include "operators.h"
#include "places.h"

namespace jit_passes {
namespace {

bool makesTensor(const Node* node) { return std::ranges::any_of(node->outputs(), isTensor); }

std::string operatorName(const Node* node) {
  if (node->kind() == prim::CallMethod && objectOf(node)->node()->kind() == prim::GetAttr) {
    return objectOf(node)->node()->s(attr::name);
  }
  std::string name = node->kind().toUnqualString();
  if (name.rfind("deferred_", 0) == 0) {
    name.erase(0, 9); // deferred_batch_norm stands for the model's batch_norm
  }
  while (name.size() > 1 && name.back() == '_') {
    name.pop_back();
  }
  return name;
}

} // namespace

NodeNames nodeNames(Graph& graph) {
  NodeNames names;
  std::unordered_map<std::string, int> taken;
  const auto give = [&](const Node* node) {
    const auto path = moduleOf(node).first;
    std::string name = path.empty() ? operatorName(node) : path + ":" + operatorName(node);
    if (const int count = taken[name]++) {
      name += "#" + std::to_string(count);
    }
    names.emplace(node, std::move(name));
  };
  // Nodes that compute no tensor, or count batches, get their names last: a model that trains has more of them, and
  // its other names must be the same as in eval mode.
  std::vector<const Node*> rest;
  const auto named = [](const Node* node) {
    return node->kind() != prim::Constant && !isQuantization(node) && !isPlace(node);
  };
  for (const Node* node : nodesWhere(graph, named)) {
    makesTensor(node) && node->hasUses() ? give(node) : rest.push_back(node);
  }
  std::ranges::for_each(rest, give);
  return names;
}

} // namespace jit_passes
