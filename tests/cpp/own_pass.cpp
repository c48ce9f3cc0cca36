// A pass of another package: turns aten::tanh into aten::sigmoid.
#include <jit_passes/graph.h>
#include <jit_passes/registry.h>

namespace {

bool swapTanh(jit_passes::PassContext& context) {
  bool changed = false;
  jit_passes::forEachNode(*context.graph(), [&](torch::jit::Node* node) {
    if (node->kind() == c10::aten::tanh) {
      auto* made = jit_passes::insertNode(node, c10::aten::sigmoid, node->inputs(), node);
      jit_passes::replaceNode(node, made->output());
      changed = true;
    }
  });
  return changed;
}

const jit_passes::RegisterPass registration{"swap_tanh", "Turn tanh into sigmoid.", swapTanh};

} // namespace
