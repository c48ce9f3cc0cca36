#include "alias.h"

namespace jit_passes {
namespace {

// Without a schema an operator is one of the language's own; of these, some call what is not seen.
bool mayWrite(const Node* node) {
  if (node->kind() == c10::aten::batch_norm || node->kind() == c10::aten::instance_norm) {
    return constantNumber(node->input(5)) != 0.0; // running statistics, if it trains
  }
  if (const auto* schema = node->maybeSchema()) {
    return schema->is_mutable();
  }
  static const std::unordered_set<c10::Symbol> harmless{
      c10::prim::Constant,      c10::prim::GetAttr,      c10::prim::If,         c10::prim::Loop,
      c10::prim::ListConstruct, c10::prim::ListUnpack,   c10::prim::TupleIndex, c10::prim::TupleConstruct,
      c10::prim::TupleUnpack,   c10::prim::DictConstruct};
  return !harmless.count(node->kind());
}

} // namespace

bool anyMayWrite(Graph& graph) {
  bool found = false;
  forEachNode(graph, [&](const Node* node) { found = found || mayWrite(node); });
  return found;
}

void removeDeadNodes(const std::shared_ptr<Graph>& graph) {
  if (anyMayWrite(*graph)) {
    torch::jit::EliminateDeadCode(graph);
  } else {
    torch::jit::EliminateDeadCode(graph->block());
  }
}

std::unordered_set<const Value*> writtenValues(const std::shared_ptr<Graph>& graph) {
  if (!anyMayWrite(*graph)) {
    return {};
  }
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
