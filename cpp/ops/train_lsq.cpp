// jit_passes::train_lsq: fake_quantize_lsq with a scale that starts from the first batch.
//
//   scale  = by rule from the first batch, if it is infinite and observe
//   result = fake_quantize_lsq(x, scale, gradient_scale = 1 / sqrt(N * quant_max))
//
// N is how many numbers share a scale, and of these the ones in a single sample with per_sample: the
// paper's features. The rules, t being a threshold and s = t / max(-quant_min, quant_max):
//
//   lsq                 s = 2 mean |x| / sqrt(quant_max)                             (LSQ, section 2.1)
//   three_sigma         t = max(|mean - 3 std|, |mean + 3 std|)                      (LSQ+, equation 7)
//   max                 t = max |x|
//   klj                 t as observers/klj.py finds it
//   mean_squared_error  s of the symmetric range with the least squared error; from 0 where quant_min is 0
//
// With a fold the numbers are x * fold and the result is divided by it, as in fake_quantize_moving_average.
// LSQ's gradient scale is for the scale alone, not for the fold: the scale enters as itself + g * (0 with
// its gradient).
//
// Sources: Esser et al., arXiv:1902.08153; Bhalgat et al., arXiv:2004.09576.
#include "fake_quantize.h"
#include "first_batch.h"
#include "trained_quantization.h"
#include "training.h"

namespace jit_passes {
namespace {

using at::Tensor;
using c10::string_view;

std::vector<double> firstScales(
    const FirstBatch& batch, string_view rule, int64_t quant_min, int64_t quant_max, bool per_channel) {
  const auto reach = static_cast<double>(std::max(-quant_min, quant_max));
  std::vector<double> scales;
  if (rule == "lsq") {
    for (const double mean : batch.meanMagnitudes()) {
      scales.push_back(2 * mean / std::sqrt(static_cast<double>(quant_max)));
    }
  } else if (rule == "three_sigma") {
    for (const auto& [mean, deviation] : batch.meansAndDeviations()) {
      scales.push_back((std::abs(mean) + 3 * deviation) / reach); // the larger one
    }
  } else if (rule == "max") {
    for (const double largest : batch.largestMagnitudes()) {
      scales.push_back(largest / reach);
    }
  } else {
    TORCH_CHECK(
        (rule == "klj" || rule == "mean_squared_error") && !per_channel,
        "rule is lsq, three_sigma or max, or for a whole tensor klj or mean_squared_error, not '", rule, "'");
    if (rule == "klj") {
      scales.push_back(batch.leastDivergence(quant_min, quant_max) / reach);
    } else {
      const auto [low, high] = batch.leastSquaredError(quant_min, quant_max, /*with_offset=*/false);
      scales.push_back((high - low) / static_cast<double>(quant_max - quant_min));
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
    std::optional<int64_t> ch_axis, string_view group, string_view name) {
  const auto axis = wrapAxis(ch_axis, x);
  checkGrid(x, quant_min, quant_max);
  checkCount(scale, "scale", x, axis);
  const int64_t along = fold ? checkedFoldAxis(x, *fold, fold_axis, axis, name) : 0;
  if (observe && isUnset(scale)) {
    const FirstBatch batch(x, fold, along, axis, group, name);
    if (!batch.empty()) {
      assign(scale, firstScales(batch, rule, quant_min, quant_max, axis.has_value()));
    }
  }
  if (enabled && x.numel() > 0) {
    guardScale<kCpu>(scale, corrections, name);
  }
}

void prepareLsqMeta(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t, bool, bool,
    string_view, int64_t, int64_t, std::optional<int64_t>, string_view, string_view) {}

Tensor trainLsq(
    const Tensor& x, const Tensor& scale, const Tensor& corrections, const std::optional<Tensor>& fold,
    int64_t fold_axis, bool observe, bool enabled, string_view rule, bool per_sample, int64_t quant_min,
    int64_t quant_max, std::optional<int64_t> ch_axis, int64_t zero_point, string_view group,
    string_view name, string_view) {
  static const auto prepare = findOperator<void(
      const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t, bool, bool,
      string_view, int64_t, int64_t, std::optional<int64_t>, string_view, string_view)>(
      "jit_passes::prepare_lsq");
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
    return callFakeQuantizeLsq(x, scale, quant_min, quant_max, gradient_scale, ch_axis, zero_point);
  }
  const auto known = scale.detach();
  const auto folded = foldScale(known + gradient_scale * (scale - known), *fold);
  return callFakeQuantizeLsq(x, folded, quant_min, quant_max, 1, fold_axis, zero_point);
}

const RegisterOp train_lsq_op{
    "train_lsq", "Fake-quantize with a trained scale that starts from the data (LSQ)."};
const RegisterOp prepare_lsq_op{"prepare_lsq", "Initialize an LSQ scale, and keep it positive."};

TORCH_LIBRARY_FRAGMENT(jit_passes, m) {
  m.def(
      "prepare_lsq(Tensor x, Tensor(a!) scale, Tensor(b!) corrections, Tensor? fold, int fold_axis, "
      "bool observe, bool enabled, str rule, int quant_min, int quant_max, int? ch_axis, str group, "
      "str name) -> ()");
  m.def(
      "train_lsq(Tensor x, Tensor(a!) scale, Tensor(b!) corrections, Tensor? fold, int fold_axis, "
      "bool observe, bool enabled, str rule, bool per_sample, int quant_min, int quant_max, int? ch_axis, "
      "int zero_point, str group, str name, str spec) -> Tensor");
}

TORCH_LIBRARY_IMPL(jit_passes, CPU, m) { m.impl("prepare_lsq", prepareLsq<true>); }

TORCH_LIBRARY_IMPL(jit_passes, CompositeExplicitAutograd, m) { m.impl("prepare_lsq", prepareLsq<false>); }

TORCH_LIBRARY_IMPL(jit_passes, Meta, m) { m.impl("prepare_lsq", prepareLsqMeta); }

TORCH_LIBRARY_IMPL(jit_passes, CompositeImplicitAutograd, m) { m.impl("train_lsq", trainLsq); }

} // namespace
} // namespace jit_passes
