// Operators of a batch norm that will be folded into the weights in front of it, while these train.
//
//   factor = fold_factor(gamma, var, eps)                   gamma / sqrt(var + eps)
//   shift  = fold_bias(bias, gamma, beta, mean, var, eps)   (bias - mean) * factor + beta
//
// give the weight and the bias that integers will have: weight * factor and shift. mean and var are the running
// statistics. Factor and shift are computed in double and rounded once. The bias of a convolution has its weight's
// dtype. There are two forms:
//
//   folded                                              no                            yes
//   deferred_weight(weight, factor, axis, folded)       weight, factor                weight * factor, none
//   deferred_bias(bias, rounded, weight, folded)        bias                          rounded
//   deferred_batch_norm(x, gamma, beta, mean, var,      batch_norm(x, gamma,          x
//       ..., rounded, shift, folded)                        beta + rounded - shift,
//                                                           mean, var, ...)
//
// While the statistics are the batch's, nothing can be folded. So fake quantization sees the folded weight,
// fq(weight * factor) / factor, by its operand `fold`. The rounding error of the shift, if it is given, is added to
// beta. Once statistics do not change, the model computes the results of the converted model.
//
// Scales are divided by the factor. A factor of 0 or close to 0, in residual branches that start as zeros, would
// leave the weight without a gradient. 1 takes its place, and the result still is beta.
//
// Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference",
// arXiv:1806.08342, section 3.2.2.
#include "graph/registry.h"
#include "grid.h"

namespace jit_passes {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr double kSmallestFactor = 0x1p-60;

bool given(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

Tensor factorOf(const OptionalTensor& weight, const Tensor& running_var, double eps) {
  const auto factor = at::rsqrt(running_var.detach().to(at::kDouble) + eps);
  return given(weight) ? factor * weight->to(at::kDouble) : factor;
}

Tensor foldFactor(const OptionalTensor& weight, const Tensor& running_var, double eps) {
  return factorOf(weight, running_var, eps).to(at::kFloat);
}

Tensor foldBias(
    const OptionalTensor& bias, const OptionalTensor& weight, const OptionalTensor& beta,
    const Tensor& running_mean, const Tensor& running_var, double eps) {
  const auto mean = running_mean.detach().to(at::kDouble);
  auto shift = (given(bias) ? bias->to(at::kDouble) - mean : -mean) * factorOf(weight, running_var, eps);
  if (given(beta)) {
    shift = shift + beta->to(at::kDouble);
  }
  return running_mean.scalar_type() == at::kDouble ? shift : shift.to(at::kFloat);
}

std::tuple<Tensor, OptionalTensor> deferredWeight(
    const Tensor& weight, const Tensor& factor, int64_t axis, bool folded) {
  if (!folded) {
    const auto small = at::lt(at::abs(factor), kSmallestFactor);
    return {weight, at::where(small, at::ones_like(factor), factor)};
  }
  return {weight * alongAxis(factor.to(weight.scalar_type()), weight, axis), std::nullopt};
}

OptionalTensor deferredBias(
    const OptionalTensor& bias, const Tensor& rounded, const Tensor& weight, bool folded) {
  if (folded) {
    return rounded.to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  return given(bias) ? OptionalTensor(bias->clone()) : std::nullopt;
}

Tensor deferredBatchNorm(
    const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias, const Tensor& running_mean,
    const Tensor& running_var, bool training, double momentum, double eps, bool cudnn_enabled,
    const Tensor& rounded, const OptionalTensor& shift, bool folded) {
  if (folded) {
    return input.clone();
  }
  auto beta = bias;
  if (given(shift)) {
    const auto change = (rounded - *shift).detach().to(running_mean.scalar_type());
    beta = given(bias) ? *bias + change : change;
  }
  return at::batch_norm(
      input, weight, beta, running_mean, running_var, training, momentum, eps, cudnn_enabled);
}

const RegisterOp fold_factor_op{
    "fold_factor(Tensor? weight, Tensor running_var, float eps) -> Tensor",
    "The factor of each channel's weights when a batch norm is folded.", composed(foldFactor)};
const RegisterOp fold_bias_op{
    "fold_bias(Tensor? bias, Tensor? weight, Tensor? beta, Tensor running_mean, Tensor running_var, "
    "float eps) -> Tensor",
    "The bias that folding a batch norm makes.", composed(foldBias)};
const RegisterOp deferred_weight_op{
    "deferred_weight(Tensor(a) weight, Tensor factor, int axis, bool folded) -> (Tensor(a), Tensor?)",
    "A weight and its factor, or their product.", composed(deferredWeight)};
const RegisterOp deferred_bias_op{
    "deferred_bias(Tensor? bias, Tensor rounded, Tensor weight, bool folded) -> Tensor?",
    "The bias of a convolution, or the folded one.", composed(deferredBias)};
const RegisterOp deferred_batch_norm_op{
    "deferred_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) running_mean, "
    "Tensor(b!) running_var, bool training, float momentum, float eps, bool cudnn_enabled, Tensor rounded, "
    "Tensor? shift, bool folded) -> Tensor",
    "Batch norm that will be folded into the weights in front of it.", composed(deferredBatchNorm)};

} // namespace
} // namespace jit_passes
