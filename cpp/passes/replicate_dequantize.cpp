// Give each use of a dequantized value a dequantize of its own, in the same block, so that patterns
// match one use without regard to the others.
//
//   %d = jit_passes::dequantize(%q, ...)        %d1 = jit_passes::dequantize(%q, ...)
//   %a = aten::conv2d(%d, ...)             ->   %a = aten::conv2d(%d1, ...)
//   %b = aten::add(%d, %a, %one)                %d2 = jit_passes::dequantize(%q, ...)
//                                               %b = aten::add(%d2, %a, %one)
#include "core/alias.h"
#include "core/graph.h"
#include "core/places.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool replicateDequantize(PassContext& context) {
  const auto graph = context.graph();
  const auto written = writtenValues(graph);
  bool changed = false;
  std::vector<Node*> sources;
  forEachNode(*graph, [&](Node* node) {
    if (startsWith(node, "jit_passes::dequantize") && !written.count(node->output()) &&
        node->output()->uses().size() > 0) {
      sources.push_back(node);
    }
  });
  for (Node* source : sources) {
    const auto uses = source->output()->uses();
    if (uses.size() == 1 && uses[0].user->owningBlock() == source->owningBlock()) {
      continue;
    }
    for (const auto& use : uses) {
      Value* copy = insertValue(use.user, source->kind(), source->inputs(), source, source->output()->type());
      handOverPlace(source, copy->node());
      use.user->replaceInput(use.offset, copy);
    }
    source->destroy();
    changed = true;
  }
  return changed;
}

const RegisterPass replicate_dequantize_pass{
    "replicate_dequantize",
    "Give each use of a dequantized value its own dequantize.",
    replicateDequantize,
    {"no_observers"}};

} // namespace
} // namespace jit_passes
