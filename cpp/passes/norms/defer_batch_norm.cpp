// Mark batch norms that conversion will fold into the convolution or linear in front of them.
//
//   %y = aten::conv2d(%x, %w, %b, ...)
//   %z = aten::batch_norm(%y, %gamma, %beta, %mean, %var, %training, ...)
//     ->
//   %y = aten::conv2d(%x, %w, %b, ...)
//   %shift = jit_passes::fold_bias(%b, %gamma, %beta, %mean, %var, %eps)
//   %z = jit_passes::deferred_batch_norm(%y, %gamma, ..., %training, ..., %shift, None, False)
//
// for graphs that still have their parameters. Both forms compute equal results. The mark says that conversion will
// quantize the product of %w and the batch norm's factor, and the bias %shift. Fake quantizations of weight and bias
// act on these two.
//
// The pass marks all batch norms that fold_batch_norm will fold, except after transposed convolutions in groups,
// whose weight has no axis for all output channels.
#include "facts/known_values.h"
#include "graph/dialect.h"
#include "graph/registry.h"
#include "quantization/batch_norm.h"

namespace jit_passes {
namespace {

bool holdsTensor(const KnownValues& known, const Value* value, int64_t numel) {
  const auto held = known.attribute(value);
  return held && held->isTensor() && held->toTensor().numel() == numel;
}

bool canDefer(const KnownValues& known, const NormalizedRanks& ranks, const Node* norm) {
  const auto op = normalizedOperator(norm, ranks);
  if (!op || (op->kind.transposed && op->groups != 1) || !constantNumber(norm, "eps")) {
    return false;
  }
  const auto weight = known.tensor(inputOf(op->node, "weight"));
  if (!weight || !weight->is_floating_point()) {
    return false;
  }
  const int64_t channels = op->channels(*weight);
  const auto fits = [&](const Value* value) { return holdsTensor(known, value, channels); };
  const auto fits_or_none = [&](const Value* value) { return known.isNone(value) || fits(value); };
  return fits_or_none(inputOf(op->node, "bias")) && fits_or_none(inputOf(norm, "weight")) &&
         fits_or_none(inputOf(norm, "bias")) && fits(inputOf(norm, "running_mean")) &&
         fits(inputOf(norm, "running_var"));
}

Value* marked(Node* norm) {
  Value* bias = inputOf(inputOf(norm, "input")->node(), "bias");
  Value* shift = insertValue(
      norm, fold_bias,
      {bias, inputOf(norm, "weight"), inputOf(norm, "bias"), inputOf(norm, "running_mean"),
       inputOf(norm, "running_var"), inputOf(norm, "eps")},
      norm);
  auto operands = norm->inputs().vec();
  operands.insert(operands.end(), {shift, insertConstant(norm, {}), insertConstant(norm, false)});
  return insertValue(norm, deferred_batch_norm, operands, norm, norm->output()->type());
}

bool deferBatchNorm(PassContext& context) {
  const KnownValues known(context, /*attributes_apart=*/true);
  const auto ranks = normalizedRanks(context);
  return replaceNodes(*context.graph(), [&](Node* node) {
    return node->kind() == aten::batch_norm && canDefer(known, ranks, node) ? marked(node) : nullptr;
  });
}

const RegisterPass defer_batch_norm_pass{
    "defer_batch_norm", "Mark batch norms that will be folded once training is over.", deferBatchNorm,
    needs("inlined")};

} // namespace
} // namespace jit_passes
