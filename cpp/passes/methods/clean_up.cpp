// PyTorch's own cleaning, under names that pipelines can use.
#include <torch/csrc/jit/passes/lower_tuples.h>

#include "graph/alias.h"
#include "graph/module.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

// A loop that runs a known number of times becomes that many copies of its body: other passes see the
// operators and their operands.
bool unrollLoops(PassContext& context) {
  auto graph = context.graph();
  return torch::jit::UnrollConstantLoops(graph);
}

// A branch gives what its tuples are made of, if both sides make one there.
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

// Traced models return tuples from modules, and take them apart where they call these.
bool resolveTuples(PassContext& context) {
  const auto& graph = context.graph();
  const auto before = nodesInOrder(*graph);
  if (std::ranges::none_of(before, [](const Node* node) { return node->kind() == prim::TupleConstruct; })) {
    return false;
  }
  const bool split = changeNodes(*graph, splitTuples);
  torch::jit::LowerSimpleTuples(graph->block()); // the form for graphs removes writes behind dropout
  removeDeadNodes(graph);
  return split || nodesInOrder(*graph).size() != before.size();
}

bool removeDeadCode(PassContext& context) {
  const size_t before = nodesInOrder(*context.graph()).size();
  removeDeadNodes(context.graph());
  return nodesInOrder(*context.graph()).size() != before;
}

// Attributes that the graph does not read any more, so that files do not carry them.
bool removeUnusedAttributes(PassContext& context) {
  std::unordered_set<std::string> used;
  const Value* self = context.graph()->inputs().at(0);
  for (const auto& use : self->uses()) {
    if (!use.user->hasAttribute(attr::name)) {
      return false; // self is used as a whole
    }
    used.insert(use.user->s(attr::name));
  }
  used.insert("training");
  const auto self_object = context.module()._ivalue();
  const auto keep = [&](const c10::ivalue::Object& owner, const std::string& name) {
    return &owner != self_object.get() || used.count(name) > 0;
  };
  const size_t before = context.module().type()->numAttributes();
  context.module() =
      rebuildModule(context.module(), {{context.method(), context.graph()}}, keep, Values::Shared);
  return context.module().type()->numAttributes() != before;
}

const RegisterPass unroll_loops_pass{
    "unroll_loops", "Unroll loops with a constant number of rounds.", unrollLoops};
const RegisterPass resolve_tuples_pass{
    "resolve_tuples", "Give whoever takes a tuple apart what the tuple is made of.", resolveTuples};
const RegisterPass remove_dead_code_pass{
    "remove_dead_code", "Remove what no result depends on.", removeDeadCode};
const RegisterPass remove_unused_attributes_pass{
    "remove_unused_attributes", "Remove attributes that the method does not read.", removeUnusedAttributes,
    needs("inlined")};

} // namespace
} // namespace jit_passes
