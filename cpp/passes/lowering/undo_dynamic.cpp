// Leave values in float whose quantization at run time no operator of the target has taken.
//
//   %s, %z = jit_passes::choose_qparams(%x, ...)
//   %q = jit_passes::quantize_dynamic(%x, %s, %z, ...)
//   %d = jit_passes::dequantize_dynamic(%q, %s, %z)
//   %y, %c = aten::lstm_cell(%d, ...)               ->   %y, %c = aten::lstm_cell(%x, ...)    and a remark
//
// For targets without the dialect, after all fusion. A rule that refused to fuse the operator has remarked the
// reason already.
#include "graph/dialect.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

bool undoDynamic(PassContext& context) {
  return replaceNodes(*context.graph(), [&](Node* node) -> Value* {
    if (node->kind() != dequantize_dynamic || inputOf(node, "q")->node()->kind() != quantize_dynamic) {
      return nullptr;
    }
    for (const Use& use : node->output()->uses()) {
      context.remark(use.user, "the target has no operator that quantizes its input as the model runs here");
    }
    return inputOf(inputOf(node, "q")->node(), "x");
  });
}

const RegisterPass undo_dynamic_pass{
    "undo_dynamic", "Leave inputs in float that no operator quantizes at run time.", undoDynamic,
    needs("no_observers")};

} // namespace
} // namespace jit_passes
