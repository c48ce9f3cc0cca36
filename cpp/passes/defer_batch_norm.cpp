// Mark batch norms that conversion will fold into the convolution or linear in front of them.
//
//   %y = aten::conv2d(%x, %w, ...)
//   %z = aten::batch_norm(%y, %gamma, %beta, %mean, %var, %training, ...)
//     ->  %z = jit_passes::deferred_batch_norm(%y, %gamma, %beta, %mean, %var, %training, ...)
//
// for graphs that still have their parameters. Both compute the same. The mark says that integers will
// see %w times the factor of the batch norm, which is what a fake quantization of %w then is about.
//
// Where fold_batch_norm will fold, but for transposed convolutions in groups, whose weight has no axis for
// all output channels.
#include "core/batch_norm.h"
#include "core/known_values.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool holdsTensor(const KnownValues& known, const Value* value, int64_t numel) {
  const auto held = known.attribute(value);
  return held && held->isTensor() && held->toTensor().numel() == numel;
}

bool holdsNone(const KnownValues& known, const Value* value) {
  const auto held = known.attribute(value);
  return isNone(value) || (held && held->isNone());
}

bool canDefer(const KnownValues& known, const Node* norm) {
  const auto op = normalizedOperator(norm);
  if (!op || (op->kind.transposed && op->groups != 1) || !constantNumber(norm->input(7))) {
    return false;
  }
  const auto weight = known.parameter(op->node->input(1));
  if (!weight || !weight->isTensor() || !weight->toTensor().is_floating_point()) {
    return false;
  }
  const int64_t channels = op->channels(weight->toTensor());
  const auto fits = [&](const Value* value) { return holdsTensor(known, value, channels); };
  const auto fits_or_none = [&](const Value* value) { return holdsNone(known, value) || fits(value); };
  return fits_or_none(op->node->input(2)) && fits_or_none(norm->input(1)) && fits_or_none(norm->input(2)) &&
         fits(norm->input(3)) && fits(norm->input(4));
}

bool deferBatchNorm(PassContext& context) {
  static const auto deferred = c10::Symbol::fromQualString("jit_passes::deferred_batch_norm");
  const KnownValues known(context, /*attributes_apart=*/true);
  bool changed = false;
  forEachNode(*context.graph(), [&](Node* node) {
    if (node->kind() == c10::aten::batch_norm && canDefer(known, node)) {
      Node* marked = insertNode(node, deferred, node->inputs(), node);
      marked->output()->setType(node->output()->type());
      replaceNode(node, marked->output());
      changed = true;
    }
  });
  return changed;
}

const RegisterPass registration{
    "defer_batch_norm",
    "Mark batch norms that will be folded once training is over.",
    deferBatchNorm,
    {"inlined"}};

} // namespace
} // namespace jit_passes
