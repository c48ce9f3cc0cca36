// What stands for a batch norm that will be folded into the weights in front of it, while these train.
//
//   fold_factor = gamma / sqrt(running_var + eps), 1 where that is below 2^-60
//   deferred_batch_norm: aten::batch_norm, with a mark
//
// Integers will compute with weight * fold_factor, so a fake quantization of the weight is one of that,
// divided by the factor again: the batch norm multiplies by it. While statistics are those of the batch,
// the factor still has the running ones, as the folded weight will.
//
// A factor of 0, as that of residual branches which start as zeros, or one that has shrunk to hardly more,
// would take away what trains the weight: scales are divided by it. With 1 in its place, the result still
// is beta.
//
// Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference",
// arXiv:1806.08342, section 3.2.2.
#include "core/registry.h"

namespace jit_passes {
namespace {

using at::Tensor;

constexpr double kSmallestFactor = 0x1p-60;

Tensor foldFactor(const std::optional<Tensor>& weight, const Tensor& running_var, double eps) {
  auto factor = at::rsqrt(running_var.detach().to(at::kFloat) + eps);
  if (weight && weight->defined()) {
    factor = factor * weight->to(at::kFloat);
  }
  return at::where(at::lt(at::abs(factor), kSmallestFactor), at::ones_like(factor), factor);
}

Tensor deferredBatchNorm(
    const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    const Tensor& running_mean, const Tensor& running_var, bool training, double momentum, double eps,
    bool cudnn_enabled) {
  return at::batch_norm(
      input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
}

const RegisterOp factor_op{
    "fold_factor", "What folding a batch norm multiplies the weights of each channel by; 1 instead of 0."};
const RegisterOp batch_norm_op{
    "deferred_batch_norm", "Batch norm that will be folded into the weights in front of it."};

TORCH_LIBRARY_FRAGMENT(jit_passes, m) {
  m.def("fold_factor(Tensor? weight, Tensor running_var, float eps) -> Tensor");
  m.def(
      "deferred_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) running_mean, "
      "Tensor(b!) running_var, bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor");
}

TORCH_LIBRARY_IMPL(jit_passes, CompositeImplicitAutograd, m) {
  m.impl("fold_factor", foldFactor);
  m.impl("deferred_batch_norm", deferredBatchNorm);
}

} // namespace
} // namespace jit_passes
