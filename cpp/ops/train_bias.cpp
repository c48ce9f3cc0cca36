// jit_passes::train_bias: the fake quantization of a bias.
//
//   step    = max(scale of the input * scale of the weight, |x| / (quant_max / 2))
//   result  = round(x / step) * step
//
// The result is a whole number of steps, as integers add it to the sum of products. The second term is for channels
// with zero or tiny weights: there `convert` raises the weight's scale until the bias fits its integers. With one
// scale for the whole weight, |x| is the largest of all channels.
//
// The gradient passes straight through rounding to x, and none goes to the scales. With few bits the steps are
// coarse, and a model that has not trained with them loses accuracy.
//
// A scale comes from the state of its place, by a rule: "scale" is the scale itself; "log2_threshold" is TQT's; any
// other rule names the scheme that derives the scale from a range. While one of the two scales is not known, or not
// `enabled`, the result is x.
//
// Source: Jacob et al., "Quantization and training of neural networks for efficient
// integer-arithmetic-only inference", arXiv:1712.05877, section 2.4.
#include "fake_quantize.h"
#include "training.h"

namespace jit_passes {
namespace {

using at::Tensor;
using c10::string_view;

Tensor scaleOf(const Tensor& state, string_view rule, int64_t quant_min, int64_t quant_max) {
  if (rule == "scale") {
    return state;
  }
  if (rule != "log2_threshold") {
    return scaleOfRange(state, quant_min, quant_max, rule);
  }
  const auto known = at::isfinite(state); // the operator raises an error for other states
  const auto scale = scaleOfThreshold(at::where(known, state, 0), quant_min, quant_max);
  return at::where(known, scale, std::numeric_limits<float>::quiet_NaN());
}

Tensor trainBias(
    const Tensor& x, const Tensor& input_state, string_view input_rule, int64_t input_min, int64_t input_max,
    const Tensor& weight_state, string_view weight_rule, int64_t weight_min, int64_t weight_max, bool enabled,
    int64_t, int64_t quant_max, string_view, string_view) {
  if (!enabled) {
    return x.clone();
  }
  Tensor rounded;
  {
    const at::NoGradGuard guard;
    const auto step = (scaleOf(input_state, input_rule, input_min, input_max).to(at::kDouble) *
                       scaleOf(weight_state, weight_rule, weight_min, weight_max).to(at::kDouble))
                          .to(at::kFloat);
    const auto values = x.to(at::kFloat);
    const auto needed = values.abs() / static_cast<double>(quant_max / 2);
    const auto fitting = at::maximum(step, step.numel() == 1 ? needed.max() : needed);
    const auto codes = at::round(inSteps(values, fitting));
    const auto known = at::logical_and(at::isfinite(step), at::gt(step, 0));
    rounded = at::where(known, codes * fitting, values).to(x.scalar_type());
  }
  return rounded + (x - x.detach()); // 0, with the gradient; x + (rounded - x) would round again
}

const RegisterOp train_bias_op{
    "train_bias(Tensor x, Tensor input_state, str input_rule, int input_min, int input_max, "
    "Tensor weight_state, str weight_rule, int weight_min, int weight_max, bool enabled, int quant_min, "
    "int quant_max, str name, str spec) -> Tensor",
    "Round a bias to steps of the accumulator, straight through.", composed(trainBias)};

} // namespace
} // namespace jit_passes
