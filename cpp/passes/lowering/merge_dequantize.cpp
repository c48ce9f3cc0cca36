// Dequantize a value once for all its users in a block: undoes replicate_dequantize for users that stay in float.
//
//   %d1 = aten::dequantize(%q)            %d = aten::dequantize(%q)
//   %a = aten::cos(%d1)             ->    %a = aten::cos(%d)
//   %d2 = aten::dequantize(%q)            %b = aten::sin(%d)
//   %b = aten::sin(%d2)
#include "graph/alias.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

bool mergeDequantize(PassContext& context) {
  const auto graph = context.graph();
  const auto written = writtenValues(graph);
  std::map<std::pair<const Block*, const Value*>, Node*> first;
  return replaceNodes(*graph, [&](Node* node) -> Value* {
    if (node->kind() != aten::dequantize || node->inputs().size() != 1 || written.count(node->input()) ||
        written.count(node->output())) {
      return nullptr;
    }
    const auto [found, is_first] = first.emplace(std::pair(node->owningBlock(), node->input()), node);
    return is_first ? nullptr : found->second->output();
  });
}

const RegisterPass merge_dequantize_pass{
    "merge_dequantize", "Dequantize a value once for all its users.", mergeDequantize, needs("no_observers")};

} // namespace
} // namespace jit_passes
