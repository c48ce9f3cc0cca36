// Fold batch normalization with constant statistics into the convolution or linear before it.
//
//   factor = gamma / sqrt(running_var + eps)
//   weight' = weight * factor          bias' = (bias - running_mean) * factor + beta
//
// along the output channels. Factor and bias are computed in double. The normalization must be the only node that
// uses the result's values, so a convolution with two normalizations keeps both. Rows that a model joins between
// linear and batch norm, flatten(0, 1), stay joined.
#include "graph/registry.h"
#include "quantization/batch_norm.h"

namespace jit_passes {
namespace {

struct Statistics {
  at::Tensor factor;
  at::Tensor shift; // added after the multiplication, for a bias of 0
};

// aten::batch_norm(x, gamma?, beta?, mean?, var?, training, momentum, eps, cudnn)
std::optional<Statistics> constantStatistics(const Node* node) {
  const auto mean = constantTensor(node, "running_mean"), variance = constantTensor(node, "running_var");
  const auto eps = constantNumber(node, "eps");
  if (!mean || !variance || !eps || constantNumber(node, "training") != 0.0) {
    return std::nullopt;
  }
  auto factor = (variance->to(at::kDouble) + *eps).rsqrt();
  for (int i : {1, 2}) {
    if (!isNone(node->input(i)) && !constantTensor(node->input(i))) {
      return std::nullopt;
    }
  }
  if (const auto gamma = constantTensor(node, "weight")) {
    factor = factor * gamma->to(at::kDouble);
  }
  auto shift = -mean->to(at::kDouble) * factor;
  if (const auto beta = constantTensor(node, "bias")) {
    shift = shift + beta->to(at::kDouble);
  }
  return Statistics{factor, shift};
}

// The factor in the shape of the weight: [out, in/groups, ...], transposed [in, out/groups, ...].
at::Tensor scaleWeight(
    const at::Tensor& weight, const at::Tensor& factor, const WeightedOperator& op, int64_t groups) {
  const auto narrow = factor.to(weight.scalar_type()); // rounds the factor, and then each product
  if (!op.transposed) {
    std::vector<int64_t> shape(weight.dim(), 1);
    shape[0] = -1;
    return weight * narrow.view(shape);
  }
  const auto grouped = weight.reshape({groups, weight.size(0) / groups, weight.size(1), -1});
  return (grouped * narrow.view({groups, 1, weight.size(1), 1})).reshape(weight.sizes());
}

// Returns why the batch norm stays, or nothing if it was folded.
std::optional<std::string> foldInto(Node* norm, const NormalizedRanks& ranks, const Shapes& shapes) {
  const auto op = normalizedOperator(norm, ranks, &shapes);
  if (!op) {
    return weightedOperator(inputOf(norm, "input")->node())
               ? "the result in front of it has other users, or axis 1 may not be its axis of channels"
               : "no convolution or linear is in front of it";
  }
  Node* producer = op->node;
  const auto statistics = constantStatistics(norm);
  if (!statistics) {
    return "its statistics or parameters are not constant";
  }
  const auto weight = constantTensor(producer, "weight"), bias = constantTensor(producer, "bias");
  if (!weight || !weight->is_floating_point() || (!bias && !isNone(producer, "bias"))) {
    return "the weight or bias in front of it is no constant of floating point";
  }
  if (statistics->factor.numel() != op->channels(*weight)) {
    return "it has another number of channels than the weight in front of it";
  }
  auto shift = statistics->shift;
  if (bias) {
    shift = shift + bias->to(at::kDouble) * statistics->factor;
  }
  const auto dtype = weight->scalar_type();
  const auto folded = scaleWeight(*weight, statistics->factor, op->kind, op->groups).to(dtype);
  Value* constant = insertConstant(producer, folded.contiguous(weight->suggest_memory_format()));
  Value* shifted = insertConstant(producer, shift.to(dtype));
  copyName(constant, inputOf(producer, "weight"));
  copyName(shifted, inputOf(producer, "bias"));
  nameBias(shifted, constant);
  producer->replaceInput(1, constant);
  producer->replaceInput(2, shifted);
  replaceNode(norm, inputOf(norm, "input"));
  return std::nullopt;
}

bool foldBatchNorm(PassContext& context) {
  const Shapes shapes(context);
  const auto ranks = normalizedRanks(context);
  return changeNodes(*context.graph(), [&](Node* node) {
    if (node->kind() != aten::batch_norm) {
      return false;
    }
    const auto reason = foldInto(node, ranks, shapes);
    if (reason) {
      context.remark(node, *reason);
    }
    return !reason;
  });
}

const RegisterPass fold_batch_norm_pass{
    "fold_batch_norm", "Fold batch norm with constant statistics into conv and linear.", foldBatchNorm,
    needs("inlined")};

} // namespace
} // namespace jit_passes
