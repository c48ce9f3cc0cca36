// Take the elements of a tuple from the node that makes it.
//
//   %t = prim::TupleConstruct(%a, %b)
//   %x, %y = prim::TupleUnpack(%t)               ->   %a, %b
//
// Traced models return tuples from modules, and take them apart after the call.
#include <torch/csrc/jit/passes/lower_tuples.h>

#include "graph/alias.h"
#include "simplify.h"

namespace jit_passes {
namespace {

// A branch gives the elements of a tuple if both sides make the tuple.
bool splitTuples(Node* branch) {
  bool changed = false;
  for (size_t i = branch->kind() == prim::If ? branch->outputs().size() : 0; i-- > 0;) {
    Value* tuple = branch->output(i);
    const bool both = std::ranges::all_of(branch->blocks(), [&](const Block* block) {
      return block->outputs()[i]->node()->kind() == prim::TupleConstruct;
    });
    if (!both || tuple->type()->kind() != c10::TypeKind::TupleType) {
      continue;
    }
    std::vector<Value*> parts;
    for (const auto& type : tuple->type()->containedTypes()) {
      parts.push_back(branch->addOutput()->setType(type));
    }
    for (Block* block : branch->blocks()) {
      for (Value* part : block->outputs()[i]->node()->inputs()) {
        block->registerOutput(part);
      }
    }
    Node* made = insertNode(branch->next(), prim::TupleConstruct, parts, branch);
    made->output()->setType(tuple->type());
    tuple->replaceAllUsesWith(made->output());
    for (Block* block : branch->blocks()) {
      block->eraseOutput(i);
    }
    branch->eraseOutput(i);
    changed = true;
  }
  return changed;
}

} // namespace

bool resolveTuples(PassContext& context) {
  const auto& graph = context.graph();
  const auto before = nodesInOrder(*graph);
  if (std::ranges::none_of(before, [](const Node* node) { return node->kind() == prim::TupleConstruct; })) {
    return false;
  }
  const bool split = changeNodes(*graph, splitTuples);
  torch::jit::LowerSimpleTuples(graph->block()); // the other overload removes writes after dropout
  removeDeadNodes(graph);
  return split || nodesInOrder(*graph).size() != before.size();
}

} // namespace jit_passes
