#include "alias.h"

namespace jit_passes {

std::unordered_set<const Value*> writtenValues(const std::shared_ptr<Graph>& graph) {
  const torch::jit::AliasDb aliases(graph);
  std::unordered_set<const Value*> written;
  const auto check = [&](const Value* value) {
    if (aliases.hasWriters(value)) {
      written.insert(value);
    }
  };
  const std::function<void(Block*)> visit = [&](Block* block) {
    for (const Value* input : block->inputs()) {
      check(input);
    }
    for (Node* node : block->nodes()) {
      for (const Value* output : node->outputs()) {
        check(output);
      }
      for (Block* inner : node->blocks()) {
        visit(inner);
      }
    }
  };
  visit(graph->block());
  return written;
}

} // namespace jit_passes
