// Read each attribute of the module once, at the start of the graph.
//
//   %conv = prim::GetAttr[name="conv"](%self)          %conv = prim::GetAttr[name="conv"](%self)
//   %w = prim::GetAttr[name="weight"](%conv)           %w = prim::GetAttr[name="weight"](%conv)
//   %y = aten::conv2d(%x, %w, ...)               ->    %y = aten::conv2d(%x, %w, ...)
//   %conv.1 = prim::GetAttr[name="conv"](%self)        %z = aten::conv2d(%y, %w, ...)
//   %w.1 = prim::GetAttr[name="weight"](%conv.1)
//   %z = aten::conv2d(%y, %w.1, ...)
//
// An attribute that the method assigns is read as often as before. Values that the graph computes from attributes
// and constants alone, such as the weight of a weight norm, are computed once instead of in each call of a shared
// module:
//
//   %w = aten::_weight_norm(%v, %g, 0)                 %w = aten::_weight_norm(%v, %g, 0)
//   %y = aten::conv2d(%x, %w, ...)               ->    %y = aten::conv2d(%x, %w, ...)
//   %w.1 = aten::_weight_norm(%v, %g, 0)               %z = aten::conv2d(%y, %w, ...)
//   %z = aten::conv2d(%y, %w.1, ...)
//
// Takes linear time.
#include <torch/csrc/jit/ir/node_hashing.h>

#include "facts/known_values.h"
#include "graph/module.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

const Value* ownerOf(const Value* value) {
  while (value->node()->kind() == prim::GetAttr) {
    value = value->node()->input();
  }
  return value;
}

// Only for nodes outside of branches, where the first of several equal nodes runs before the others.
bool computeOnce(PassContext& context) {
  const KnownValues known(context, /*attributes_apart=*/true);
  const auto isFixed = [&](const Value* output) { return known.fixed(output).has_value(); };
  std::unordered_set<Node*, torch::jit::HashNode, torch::jit::EqualNode> first;
  std::vector<Node*> again;
  for (Node* node : context.graph()->block()->nodes()) {
    const bool computes = node->kind() != prim::GetAttr && std::ranges::all_of(node->outputs(), isFixed);
    if (node->outputs().empty() || !(computes || node->kind() == prim::Constant)) {
      continue;
    }
    if (const auto [found, is_new] = first.insert(node); !is_new) {
      node->replaceAllUsesWith(*found);
      again.push_back(node);
    }
  }
  std::ranges::for_each(again, [](Node* node) { node->destroy(); });
  return !again.empty();
}

bool poolAttributes(PassContext& context) {
  const auto graph = context.graph();
  const auto assigned = assignedAttributes(*graph);
  std::unordered_map<std::string, Value*> known;
  std::vector<std::pair<Node*, std::string>> reads;
  forEachNode(*graph, [&](Node* node) {
    if (node->kind() == prim::GetAttr && ownerOf(node->output()) == graph->inputs().at(0) &&
        !passesThrough(node->output(), assigned)) {
      reads.emplace_back(node, attributePath(node->output()));
    }
  });
  Node* last = nullptr; // the last node that was moved: all stand in program order at the start of the graph
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
  return computeOnce(context) || changed;
}

const RegisterPass pool_attributes_pass{
    "pool_attributes", "Read each attribute once, and compute values of attributes alone once.",
    poolAttributes, needs("inlined")};

} // namespace
} // namespace jit_passes
