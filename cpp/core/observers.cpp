#include "observers.h"

namespace jit_passes {
namespace {

std::vector<Node*> nodesOf(Graph& graph, bool (*test)(const Node*)) {
  std::vector<Node*> found;
  forEachNode(graph, [&](Node* node) {
    if (test(node)) {
      found.push_back(node);
    }
  });
  return found;
}

} // namespace

bool isObserver(const Node* node) {
  static const auto dialect = c10::Symbol::fromQualString("namespaces::jit_passes");
  return node->kind().ns() == dialect &&
         std::string_view(node->kind().toUnqualString()).substr(0, 8) == "observe_";
}

std::vector<Node*> observersOf(Graph& graph) { return nodesOf(graph, isObserver); }

bool isTrained(const Node* node) {
  static const auto kinds = [] {
    std::unordered_set<c10::Symbol> result;
    for (const char* name :
         {"fake_quantize_moving_average", "train_lsq", "train_lsq_plus", "train_tqt", "train_fixed",
          "train_bias", "derive_quantization"}) {
      result.insert(c10::Symbol::fromQualString(std::string("jit_passes::") + name));
    }
    return result;
  }();
  return kinds.count(node->kind()) > 0;
}

std::vector<Node*> trainedOf(Graph& graph) { return nodesOf(graph, isTrained); }

Value* operandOf(const Node* node, const std::string& name) {
  const auto index = node->schema().argumentIndexWithName(name);
  return index ? const_cast<Node*>(node)->input(*index) : nullptr;
}

void setOperand(Node* node, const std::string& name, Value* value) {
  node->replaceInput(*node->schema().argumentIndexWithName(name), value);
}

} // namespace jit_passes
