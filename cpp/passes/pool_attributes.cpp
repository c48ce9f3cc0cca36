// Read each attribute of the module once, at the start of the graph.
//
//   %conv = prim::GetAttr[name="conv"](%self)          %conv = prim::GetAttr[name="conv"](%self)
//   %w = prim::GetAttr[name="weight"](%conv)           %w = prim::GetAttr[name="weight"](%conv)
//   %y = aten::conv2d(%x, %w, ...)               ->    %y = aten::conv2d(%x, %w, ...)
//   %conv.1 = prim::GetAttr[name="conv"](%self)        %z = aten::conv2d(%y, %w, ...)
//   %w.1 = prim::GetAttr[name="weight"](%conv.1)
//   %z = aten::conv2d(%y, %w.1, ...)
//
// An attribute that the method assigns stays where it is read. Takes linear time.
#include "core/module.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

const Value* ownerOf(const Value* value) {
  while (value->node()->kind() == c10::prim::GetAttr) {
    value = value->node()->input();
  }
  return value;
}

bool poolAttributes(PassContext& context) {
  const auto graph = context.graph();
  const auto assigned = assignedAttributes(*graph);
  std::unordered_map<std::string, Value*> known;
  std::vector<std::pair<Node*, std::string>> reads;
  forEachNode(*graph, [&](Node* node) {
    if (node->kind() == c10::prim::GetAttr && ownerOf(node->output()) == graph->inputs().at(0) &&
        !passesThrough(node->output(), assigned)) {
      reads.emplace_back(node, attributePath(node->output()));
    }
  });
  Node* last = nullptr; // of those that were moved: they come in program order, behind self's inputs
  bool changed = false;
  for (const auto& [node, path] : reads) {
    const auto [found, is_new] = known.emplace(path, node->output());
    if (!is_new) {
      node->output()->replaceAllUsesWith(found->second);
      changed = true;
      continue;
    }
    Node* first = graph->block()->nodes().front();
    if (last == nullptr ? first != node : last->next() != node) {
      changed = true;
      if (last == nullptr) {
        node->moveBefore(first);
      } else {
        node->moveAfter(last);
      }
    }
    last = node;
  }
  for (auto read = reads.rbegin(); read != reads.rend(); ++read) {
    if (!read->first->hasUses()) {
      read->first->destroy();
      changed = true;
    }
  }
  return changed;
}

const RegisterPass pool_attributes_pass{
    "pool_attributes", "Read each attribute once, at the start of the graph.", poolAttributes, {"inlined"}};

} // namespace
} // namespace jit_passes
