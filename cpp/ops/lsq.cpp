// jit_passes::fake_quantize_lsq: fake quantization with a trained step size (LSQ).
//
//   v  = x / scale
//   x^ = round(clip(v, quant_min, quant_max)) * scale                  by `rounding`
//   dx = g where quant_min < v < quant_max, else 0
//   d scale = gradient_scale * sum of g * { round(v) - v   where quant_min < v < quant_max
//                                         { quant_min      where v <= quant_min
//                                         { quant_max      where v >= quant_max
//
// The paper's gradient_scale is 1 / sqrt(numbers * quant_max). The mask depends on v before rounding, without the
// ends: v = 127.4 is beyond 127. PyTorch's _fake_quantize_learnable_per_tensor_affine and TQT use the rounded v.
//
// The forward is fake_quantize, which is equal since rounding keeps order and whole numbers. Codes count from
// `zero_point`, which changes last bits only: next to a tie, the code equals the code of quantize with this zero
// point. There is no second derivative.
//
// jit_passes::train_lsq: fake_quantize_lsq with a scale that is initialized from the first batch.
//
//   scale  = by rule from the first batch, if it is infinite and observe
//   result = fake_quantize_lsq(x, scale, gradient_scale = 1 / sqrt(N * quant_max))
//
// N is the number of elements that share a scale; with per_sample only those of a single sample, the paper's
// features. The rules, with a threshold t and s = t / max(-quant_min, quant_max):
//
//   lsq                 s = 2 mean |x| / sqrt(quant_max)                             (LSQ, section 2.1)
//   three_sigma         t = max(|mean - 3 std|, |mean + 3 std|)                      (LSQ+, equation 7)
//   max                 t = max |x|
//   klj                 t of jit_passes/observers/entropy.py
//   mean_squared_error  s of the symmetric range with the least squared error; from 0 where quant_min is 0
//
// With a fold the numbers are x * fold and the result is divided by it, as in fake_quantize_moving_average. LSQ's
// gradient scale applies to the scale alone, not to the fold: the scale enters as itself + g * (0 with its
// gradient).
//
// Sources: Esser et al., "Learned Step Size Quantization", arXiv:1902.08153, equations 1 to 3; Bhalgat et al.,
// arXiv:2004.09576.
#include "fake_quantize.h"
#include "first_batch.h"
#include "kernels.h"
#include "trained_quantization.h"
#include "training.h"

namespace jit_passes {
namespace {

using at::Tensor;
using c10::string_view;

Tensor fakeQuantizeLsq(
    const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max, double, Axis ch_axis,
    string_view rounding, int64_t zero_point) {
  checkCount(scale, "scale", x, wrapAxis(ch_axis, x));
  return callFakeQuantize(
      x, scale, at::full_like(scale, zero_point), quant_min + zero_point, quant_max + zero_point, ch_axis,
      rounding);
}

template <bool kCpu>
std::tuple<Tensor, Tensor> lsqBackward(
    const Tensor& gradient, const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max,
    double gradient_scale, Axis ch_axis, string_view rounding) {
  const auto axis = wrapAxis(ch_axis, x);
  checkGrid(x, quant_min, quant_max);
  checkCount(scale, "scale", x, axis);
  const auto found = dispatchRounding(rounding, [&](auto kind) {
    using Rule = SlopeOfClip<decltype(kind)>;
    constexpr auto findGradients = kCpu ? gradientsOnCpu<Rule> : gradientsByOperators<Rule>;
    return findGradients(gradient, x, scale, Tensor(), quant_min, quant_max, axis);
  });
  return {found.x, gradientOf(scale, gradient_scale * found.slopes)};
}

const RegisterOp fake_quantize_lsq_op{
    "fake_quantize_lsq(Tensor x, Tensor scale, int quant_min, int quant_max, float gradient_scale, "
    "int? ch_axis=None, str rounding=\"half_even\", int zero_point=0) -> Tensor",
    "Fake-quantize with a trained scale (LSQ).", onAnyDevice(fakeQuantizeLsq), onMeta(likeOperands()),
    withGradient(byBackward())};
const RegisterOp fake_quantize_lsq_backward_op{
    "fake_quantize_lsq_backward(Tensor gradient, Tensor x, Tensor scale, int quant_min, int quant_max, "
    "float gradient_scale, int? ch_axis=None, str rounding=\"half_even\") -> (Tensor, Tensor)",
    "Gradients of fake_quantize_lsq, in one pass over memory.",
    onCpu(lsqBackward<true>),
    onAnyDevice(lsqBackward<false>),
    onMeta(likeOperands()),
    withGradient(torch::autograd::autogradNotImplementedFallback())};

std::vector<double> firstScales(
    const FirstBatch& batch, string_view rule, int64_t quant_min, int64_t quant_max) {
  const auto reach = static_cast<double>(std::max(-quant_min, quant_max));
  std::vector<double> scales;
  if (rule == "lsq") {
    for (const double mean : batch.meanMagnitudes()) {
      scales.push_back(2 * mean / std::sqrt(static_cast<double>(quant_max)));
    }
  } else if (rule == "mean_squared_error") {
    const auto [low, high] = batch.leastSquaredError(quant_min, quant_max, /*with_offset=*/false);
    scales.push_back((high - low) / static_cast<double>(quant_max - quant_min));
  } else {
    for (const double threshold : batch.thresholds(rule, quant_min, quant_max, /*shift=*/0)) {
      scales.push_back(threshold / reach);
    }
  }
  for (double& scale : scales) {
    scale = std::max(scale, kSmallestScale);
  }
  return scales;
}

template <bool kCpu>
void prepareLsq(
    const Tensor& x, const Tensor& scale, const Tensor& corrections, const std::optional<Tensor>& fold,
    int64_t fold_axis, bool observe, bool enabled, string_view rule, int64_t quant_min, int64_t quant_max,
    Axis ch_axis, string_view group, string_view name) {
  const auto axis = wrapAxis(ch_axis, x);
  checkGrid(x, quant_min, quant_max);
  checkCount(scale, "scale", x, axis);
  const int64_t along = fold ? checkedFoldAxis(x, *fold, fold_axis, axis, name) : 0;
  if (observe && isUnset(scale)) {
    const FirstBatch batch(x, fold, along, axis, group, name);
    if (!batch.empty()) {
      assign(scale, firstScales(batch, rule, quant_min, quant_max));
    }
  }
  if (enabled && x.numel() > 0) {
    guardScale<kCpu>(scale, corrections, name);
  }
}

Tensor trainLsq(
    const Tensor& x, const Tensor& scale, const Tensor& corrections, const std::optional<Tensor>& fold,
    int64_t fold_axis, bool observe, bool enabled, string_view rule, bool per_sample, int64_t quant_min,
    int64_t quant_max, Axis ch_axis, string_view rounding, int64_t zero_point, string_view group,
    string_view name, string_view) {
  static const auto prepare = findOperator<decltype(prepareLsq<true>)>("jit_passes::prepare_lsq");
  static const auto quantize = findOperator<decltype(fakeQuantizeLsq)>("jit_passes::fake_quantize_lsq");
  callWithoutGradient(
      prepare, x, scale, corrections, fold, fold_axis, observe, enabled, rule, quant_min, quant_max, ch_axis,
      group, name);
  if (!enabled) {
    return x.clone();
  }
  if (x.sym_numel() == 0) {
    return ofNothing(x, scale, fold);
  }
  const double gradient_scale = gradientScale(x, quant_max, ch_axis, per_sample);
  if (!fold) {
    return quantize.call(x, scale, quant_min, quant_max, gradient_scale, ch_axis, rounding, zero_point);
  }
  const auto known = scale.detach();
  const auto folded = foldScale(known + gradient_scale * (scale - known), *fold);
  return quantize.call(x, folded, quant_min, quant_max, 1, fold_axis, rounding, zero_point);
}

const RegisterOp train_lsq_op{
    "train_lsq(Tensor x, Tensor(a!) scale, Tensor(b!) corrections, Tensor? fold, int fold_axis, "
    "bool observe, bool enabled, str rule, bool per_sample, int quant_min, int quant_max, int? ch_axis, "
    "str rounding, int zero_point, str group, str name, str spec) -> Tensor",
    "Fake-quantize with a trained scale that starts from the data (LSQ).", composed(trainLsq)};
const RegisterOp prepare_lsq_op{
    "prepare_lsq(Tensor x, Tensor(a!) scale, Tensor(b!) corrections, Tensor? fold, int fold_axis, "
    "bool observe, bool enabled, str rule, int quant_min, int quant_max, int? ch_axis, str group, "
    "str name) -> ()",
    "Initialize an LSQ scale, and keep it positive.", onCpu(prepareLsq<true>), onAnyDevice(prepareLsq<false>),
    onMeta(doNothing())};

} // namespace
} // namespace jit_passes
