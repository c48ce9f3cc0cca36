// Dequantize a value once for all its users in a block: undoes what replicate_dequantize did for
// users that stayed float.
//
//   %d1 = aten::dequantize(%q)            %d = aten::dequantize(%q)
//   %a = aten::cos(%d1)             ->    %a = aten::cos(%d)
//   %d2 = aten::dequantize(%q)            %b = aten::sin(%d)
//   %b = aten::sin(%d2)
#include "core/alias.h"
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool mergeDequantize(PassContext& context) {
  const auto graph = context.graph();
  const auto written = writtenValues(graph);
  std::map<std::pair<const Block*, const Value*>, Node*> first;
  std::vector<std::pair<Node*, Node*>> repeated;
  forEachNode(*graph, [&](Node* node) {
    if (node->kind() != c10::aten::dequantize || node->inputs().size() != 1 || written.count(node->input()) ||
        written.count(node->output())) {
      return;
    }
    const auto [found, is_first] = first.emplace(std::pair(node->owningBlock(), node->input()), node);
    if (!is_first) {
      repeated.emplace_back(node, found->second);
    }
  });
  for (const auto& [node, before] : repeated) {
    replaceNode(node, before->output());
  }
  return !repeated.empty();
}

const RegisterPass merge_dequantize_pass{
    "merge_dequantize", "Dequantize a value once for all its users.", mergeDequantize, {"no_observers"}};

} // namespace
} // namespace jit_passes
