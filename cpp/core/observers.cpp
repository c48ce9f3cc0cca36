#include "observers.h"

namespace jit_passes {

bool isObserver(const Node* node) {
  static const auto dialect = c10::Symbol::fromQualString("namespaces::jit_passes");
  return node->kind().ns() == dialect &&
         std::string_view(node->kind().toUnqualString()).substr(0, 8) == "observe_";
}

std::vector<Node*> observersOf(Graph& graph) {
  std::vector<Node*> observers;
  forEachNode(graph, [&](Node* node) {
    if (isObserver(node)) {
      observers.push_back(node);
    }
  });
  return observers;
}

} // namespace jit_passes
