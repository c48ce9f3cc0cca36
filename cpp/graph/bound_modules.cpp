#include "bound_modules.h"

#include "calls.h"

namespace jit_passes {
namespace {

// The inputs of a forked branch are the inputs of the node that forks it.
void bindInputs(const Node* fork, BoundModules& bound) {
  const auto inputs = fork->g(attr::Subgraph)->inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (const auto known = bound.find(fork->input(i)); known != bound.end()) {
      inputs[i]->setType(fork->input(i)->type());
      bound.emplace(inputs[i], BoundModule(known->second));
    }
  }
}

size_t countInterfaceCalls(Graph& graph) {
  size_t count = 0;
  forEachNodeAnywhere(graph, [&](const Node* node) {
    count += node->kind() == prim::CallMethod && isInterface(objectOf(node));
  });
  return count;
}

} // namespace

std::string BoundModule::pathOf(const Node* get) const {
  const auto& name = get->s(attr::name);
  return path.empty() ? name : path + "." + name;
}

void forEachNodeAnywhere(Graph& graph, const std::function<void(Node*)>& visit) {
  forEachNode(graph, [&](Node* node) {
    const auto forked = node->kind() == prim::fork ? node->g(attr::Subgraph) : nullptr;
    visit(node); // may destroy the node
    if (forked != nullptr) {
      forEachNodeAnywhere(*forked, visit);
    }
  });
}

BoundModules bindModules(Graph& graph, const Module& root) {
  BoundModules bound;
  bound.emplace(graph.inputs().at(0), BoundModule{root._ivalue(), ""});
  forEachNodeAnywhere(graph, [&](Node* node) {
    if (node->kind() == prim::fork) {
      bindInputs(node, bound);
      return;
    }
    const auto owner = node->kind() == prim::GetAttr ? bound.find(node->input()) : bound.end();
    if (owner == bound.end() || !owner->second.attribute(node).isModule()) {
      return;
    }
    BoundModule module{owner->second.attribute(node).toObject(), owner->second.pathOf(node)};
    if (isInterface(node->output())) {
      node->output()->setType(module.object->type());
    }
    bound.emplace(node->output(), std::move(module));
  });
  return bound;
}

bool exchangesModules(Graph& graph) {
  bool exchanges = false;
  forEachNodeAnywhere(graph, [&](const Node* node) {
    exchanges |= node->kind() == prim::SetAttr && isModule(assignedBy(node));
  });
  return exchanges;
}

void inlineCalls(Graph& graph, const Module& root) {
  inlineCalls(graph);
  for (bool more = findCall(graph) != nullptr; more;) {
    more = expandPicks(graph);
    if (const size_t before = countInterfaceCalls(graph)) {
      bindModules(graph, root);
      more |= countInterfaceCalls(graph) < before;
    }
    inlineCalls(graph);
  }
}

} // namespace jit_passes
