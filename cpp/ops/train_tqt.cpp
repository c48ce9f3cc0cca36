// jit_passes::train_tqt: fake_quantize_tqt with a threshold that starts from the first batch.
//
//   log2_threshold = log2 t, if it is infinite and observe; by rule:
//     three_sigma         t = |mean(x + 1e-6)| + 3 std(x)       the paper's 3SD
//     max                 t = max |x|
//     klj                 t as observers/klj.py finds it
//     mean_squared_error  t with the least squared error
//   result         = fake_quantize_tqt(x, log2_threshold)
//
// With a fold the numbers are x * fold and the result is divided by it, as in fake_quantize_moving_average:
// the scale, a power of two, is divided by the fold. A t is at least that of the smallest scale.
//
// Source: Jain et al., arXiv:1903.08066; table 2 for the rules.
#include "fake_quantize.h"
#include "first_batch.h"
#include "trained_quantization.h"
#include "training.h"

namespace jit_passes {
namespace {

using at::Tensor;
using c10::string_view;

std::vector<double> firstThresholds(
    const FirstBatch& batch, string_view rule, int64_t quant_min, int64_t quant_max, bool per_channel) {
  std::vector<double> thresholds;
  if (rule == "three_sigma") {
    for (const auto& [mean, deviation] : batch.meansAndDeviations()) {
      thresholds.push_back(std::abs(mean + 1e-6) + 3 * deviation);
    }
  } else if (rule == "max") {
    thresholds = batch.largestMagnitudes();
  } else {
    TORCH_CHECK(
        (rule == "klj" || rule == "mean_squared_error") && !per_channel,
        "rule is three_sigma or max, or for a whole tensor klj or mean_squared_error, not '", rule, "'");
    thresholds.push_back(
        rule == "klj" ? batch.leastDivergence(quant_min, quant_max)
                      : batch.leastSquaredError(quant_min, quant_max, /*with_offset=*/false).second);
  }
  const double smallest = kSmallestScale * static_cast<double>(std::max(-quant_min, quant_max + 1));
  for (double& threshold : thresholds) {
    threshold = std::log2(std::max(threshold, smallest));
  }
  return thresholds;
}

void checkThreshold(const Tensor& log2_threshold, string_view name) {
  checkSet(log2_threshold, name);
  for (const double number : Grid<double>::read(log2_threshold)) {
    TORCH_CHECK_VALUE(
        std::isfinite(number), "the trained threshold of '", name, "' is ", number,
        ": lower the learning rate of the quantization parameters, and resume from a checkpoint");
  }
}

template <bool kCpu>
void prepareTqt(
    const Tensor& x, const Tensor& log2_threshold, const std::optional<Tensor>& fold, int64_t fold_axis,
    bool observe, bool enabled, string_view rule, int64_t quant_min, int64_t quant_max,
    std::optional<int64_t> ch_axis, string_view group, string_view name) {
  const auto axis = wrapAxis(ch_axis, x);
  checkGrid(x, quant_min, quant_max);
  checkCount(log2_threshold, "log2_threshold", x, axis);
  const int64_t along = fold ? checkedFoldAxis(x, *fold, fold_axis, axis, name) : 0;
  if (observe && isUnset(log2_threshold)) {
    const FirstBatch batch(x, fold, along, axis, group, name);
    if (!batch.empty()) {
      assign(log2_threshold, firstThresholds(batch, rule, quant_min, quant_max, axis.has_value()));
    }
  }
  if (enabled && x.numel() > 0 && kCpu) {
    checkThreshold(log2_threshold, name);
  }
}

void prepareTqtMeta(
    const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t, bool, bool, string_view, int64_t,
    int64_t, std::optional<int64_t>, string_view, string_view) {}

Tensor trainTqt(
    const Tensor& x, const Tensor& log2_threshold, const std::optional<Tensor>& fold, int64_t fold_axis,
    bool observe, bool enabled, string_view rule, int64_t quant_min, int64_t quant_max,
    std::optional<int64_t> ch_axis, string_view group, string_view name, string_view) {
  static const auto prepare = findOperator<void(
      const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t, bool, bool, string_view, int64_t,
      int64_t, std::optional<int64_t>, string_view, string_view)>("jit_passes::prepare_tqt");
  callWithoutGradient(
      prepare, x, log2_threshold, fold, fold_axis, observe, enabled, rule, quant_min, quant_max, ch_axis,
      group, name);
  if (!enabled) {
    return x.clone();
  }
  if (x.sym_numel() == 0) {
    return ofNothing(x, log2_threshold, fold);
  }
  const auto scale = scaleOfThreshold(log2_threshold, quant_min, quant_max);
  return fold ? callFakeQuantizeLearnable(
                    x, foldScale(scale, *fold), quant_min, quant_max, fold_axis, "half_even")
              : callFakeQuantizeLearnable(x, scale, quant_min, quant_max, ch_axis, "half_even");
}

const RegisterOp train_tqt_op{
    "train_tqt", "Fake-quantize with a trained threshold that starts from the data (TQT)."};
const RegisterOp prepare_tqt_op{"prepare_tqt", "Initialize a TQT threshold."};

TORCH_LIBRARY_FRAGMENT(jit_passes, m) {
  m.def(
      "prepare_tqt(Tensor x, Tensor(a!) log2_threshold, Tensor? fold, int fold_axis, bool observe, "
      "bool enabled, str rule, int quant_min, int quant_max, int? ch_axis, str group, str name) -> ()");
  m.def(
      "train_tqt(Tensor x, Tensor(a!) log2_threshold, Tensor? fold, int fold_axis, bool observe, "
      "bool enabled, str rule, int quant_min, int quant_max, int? ch_axis, str group, str name, str spec) -> "
      "Tensor");
}

TORCH_LIBRARY_IMPL(jit_passes, CPU, m) { m.impl("prepare_tqt", prepareTqt<true>); }

TORCH_LIBRARY_IMPL(jit_passes, CompositeExplicitAutograd, m) { m.impl("prepare_tqt", prepareTqt<false>); }

TORCH_LIBRARY_IMPL(jit_passes, Meta, m) { m.impl("prepare_tqt", prepareTqtMeta); }

TORCH_LIBRARY_IMPL(jit_passes, CompositeImplicitAutograd, m) { m.impl("train_tqt", trainTqt); }

} // namespace
} // namespace jit_passes
