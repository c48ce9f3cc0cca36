// Turn all batch norms into those of a model in use.
//
//   jit_passes::deferred_batch_norm(%x, ..., %training, ...)   ->   aten::batch_norm(%x, ..., False, ...)
//   aten::batch_norm(%x, ..., %training, ...)                  ->   aten::batch_norm(%x, ..., False, ...)
//
// For models that have trained: freezing then finds nothing that writes to their statistics. Those without
// any (see hasStatistics) normalize by each batch, in use too, and stay.
#include "core/batch_norm.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool restoreBatchNorm(PassContext& context) {
  const KnownValues known(context);
  bool changed = false;
  forEachNode(*context.graph(), [&](Node* node) {
    const bool restored_already =
        node->kind() == c10::aten::batch_norm && constantNumber(node->input(kTraining)) == 0.0;
    if (!isBatchNorm(node) || restored_already || !hasStatistics(known, node)) {
      return;
    }
    std::vector<Value*> operands = node->inputs().vec();
    operands[kTraining] = insertConstant(node, false);
    Node* restored = insertNode(node, c10::aten::batch_norm, operands, node);
    restored->output()->setType(node->output()->type());
    replaceNode(node, restored->output());
    changed = true;
  });
  return changed;
}

const RegisterPass registration{
    "restore_batch_norm",
    "Turn batch norms that train into those of a model in use.",
    restoreBatchNorm,
    {"inlined"}};

} // namespace
} // namespace jit_passes
