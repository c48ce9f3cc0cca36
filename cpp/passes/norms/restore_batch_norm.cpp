// Turn all batch norms into batch norms in eval mode.
//
//   jit_passes::deferred_batch_norm(%x, ...)            ->   %x
//   jit_passes::deferred_bias(%bias, %rounded, ...)     ->   %rounded
//   jit_passes::deferred_weight(%w, ..., %folded)       ->   jit_passes::deferred_weight(%w, ..., True)
//   aten::batch_norm(%x, ..., %training, ...)           ->   aten::batch_norm(%x, ..., False, ...)
//
// For models that have trained: freezing then finds no write to their statistics. Batch norms without statistics
// (see hasStatistics) normalize by each batch in eval mode too, and stay. Deferred batch norms without a switch of
// switch_folding become aten::batch_norm.
#include "graph/dialect.h"
#include "graph/registry.h"
#include "quantization/batch_norm.h"

namespace jit_passes {
namespace {

// Whether it is folded at times: its operand `folded` is not the constant False.
bool isFolded(const Node* node) { return constantNumber(node, "folded") != 0.0; }

bool restoreBatchNorm(PassContext& context) {
  const KnownValues known(context);
  return changeNodes(*context.graph(), [&](Node* node) {
    if (isDeferredBatchNorm(node) && !isFolded(node)) {
      node->replaceInput(kTraining, insertConstant(node, false));
      replaceDeferred(node);
    } else if (isDeferredBatchNorm(node)) {
      replaceNode(node, inputOf(node, "input"));
    } else if (node->kind() == deferred_bias) {
      replaceNode(node, inputOf(node, "rounded"));
    } else if (node->kind() == deferred_weight && !constantNumber(node, "folded")) {
      setOperand(node, "folded", insertConstant(node, true));
    } else if (
        node->kind() == aten::batch_norm && hasStatistics(known, node) &&
        constantNumber(node->input(kTraining)) != 0.0) {
      node->replaceInput(kTraining, insertConstant(node, false));
    } else {
      return false;
    }
    return true;
  });
}

const RegisterPass restore_batch_norm_pass{
    "restore_batch_norm", "Turn batch norms that train into batch norms in eval mode.", restoreBatchNorm,
    needs("inlined")};

} // namespace
} // namespace jit_passes
