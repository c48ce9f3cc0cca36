// jit_passes::fake_quantize_tqt: fake quantization with a trained threshold, whose scale is a power of two (TQT).
//
//   scale = 2^ceil(log2_threshold) / 2^(b - 1) with signs, / 2^b without
//   x^    = fake_quantize_learnable(x, scale, quant_min, quant_max)
//   d log2_threshold = scale * ln 2 * d scale
//
// The gradient passes straight through the ceiling. The denominator is the smallest power of two that is at least
// -quant_min and above quant_max, also for narrow ranges such as [-127, 127]. The mask depends on the rounded number:
// x / scale = 127.4 becomes 127, which is inside. TensorFlow's FakeQuant and others replace rounding by the identity
// before they differentiate. Then there is no term inside the range, and the threshold learns the cost of clipping,
// but not the cost of wide steps.
//
// power_of_two_scale has no gradient. A factor of 1 with a gradient gives the scale its gradient. The scale and its
// inverse must be finite float32 numbers: other thresholds are errors on the CPU, and NaN on other devices. There is
// no second derivative.
//
// jit_passes::train_tqt: fake_quantize_tqt with a threshold that is initialized from the first batch.
//
//   log2_threshold = log2 t, if it is infinite and observe; by rule:
//     three_sigma         t = |mean(x + 1e-6)| + 3 std(x)       the paper's 3SD
//     max                 t = max |x|
//     klj                 t of jit_passes/observers/entropy.py
//     mean_squared_error  t with the least squared error
//   result         = fake_quantize_tqt(x, log2_threshold)
//
// With a fold the numbers are x * fold and the result is divided by it, as in fake_quantize_moving_average: the
// scale, a power of two, is divided by the fold. t is at least the threshold of the smallest scale.
//
// Source: Jain et al., "Trained Quantization Thresholds", arXiv:1903.08066, equations 4, 7 and 8, and table 2.
#include <numbers>

#include "fake_quantize.h"
#include "first_batch.h"
#include "kernels.h"
#include "trained_quantization.h"
#include "training.h"

namespace jit_passes {
namespace {

using at::Tensor;
using c10::string_view;

// log2 of the scale's denominator.
int checkedBits(int64_t quant_min, int64_t quant_max) {
  TORCH_CHECK(
      quant_min <= 0 && quant_max > 0, "the range [", quant_min, ", ", quant_max,
      "] must hold 0 and a number above it: the scale follows from the number of bits");
  int bits = 0;
  while ((int64_t(1) << bits) < std::max(-quant_min, quant_max + 1)) {
    ++bits;
  }
  return bits;
}

Tensor powerOfTwoScaleCpu(const Tensor& log2_threshold, int64_t quant_min, int64_t quant_max) {
  const int bits = checkedBits(quant_min, quant_max);
  auto scale = log2_threshold.to(at::kDouble).contiguous().clone();
  double* data = scale.mutable_data_ptr<double>();
  for (int64_t i = 0; i < scale.numel(); ++i) {
    const double exponent = std::ceil(data[i]) - bits;
    TORCH_CHECK(
        exponent >= -126 && exponent <= 126, "log2_threshold ", data[i], " makes the scale 2^", exponent,
        ", which must lie between 2^-126 and 2^126: start from the log2 of the largest value");
    data[i] = std::ldexp(1.0, static_cast<int>(exponent));
  }
  return scale.to(computedIn(log2_threshold));
}

Tensor powerOfTwoScaleByOperators(const Tensor& log2_threshold, int64_t quant_min, int64_t quant_max) {
  const auto exponent =
      at::ceil(log2_threshold.to(computedIn(log2_threshold))) - checkedBits(quant_min, quant_max);
  const auto known = at::logical_and(at::ge(exponent, -126), at::le(exponent, 126));
  const auto scale = at::ldexp(at::ones({}, exponent.options()), at::where(known, exponent, 0));
  return at::where(known, scale, std::numeric_limits<float>::quiet_NaN());
}

Tensor powerOfTwoScaleMeta(const Tensor& log2_threshold, int64_t, int64_t) {
  return at::empty_like(log2_threshold, log2_threshold.options().dtype(computedIn(log2_threshold)));
}

Tensor fakeQuantizeTqt(
    const Tensor& x, const Tensor& log2_threshold, int64_t quant_min, int64_t quant_max, Axis ch_axis,
    string_view rounding) {
  checkGrid(x, quant_min, quant_max);
  checkCount(log2_threshold, "log2_threshold", x, wrapAxis(ch_axis, x));
  const auto scale = scaleOfThreshold(log2_threshold, quant_min, quant_max);
  return callFakeQuantizeLearnable(x, scale, quant_min, quant_max, ch_axis, rounding);
}

const RegisterOp fake_quantize_tqt_op{
    "fake_quantize_tqt(Tensor x, Tensor log2_threshold, int quant_min, int quant_max, "
    "int? ch_axis=None, str rounding=\"half_even\") -> Tensor",
    "Fake-quantize with a trained threshold, its scale a power of two (TQT).", composed(fakeQuantizeTqt)};
const RegisterOp power_of_two_scale_op{
    "power_of_two_scale(Tensor log2_threshold, int quant_min, int quant_max) -> Tensor",
    "The power of two that is the scale of a TQT threshold.", onCpu(powerOfTwoScaleCpu),
    onAnyDevice(powerOfTwoScaleByOperators), onMeta(powerOfTwoScaleMeta)};

std::vector<double> firstThresholds(
    const FirstBatch& batch, string_view rule, int64_t quant_min, int64_t quant_max) {
  std::vector<double> thresholds;
  if (rule == "mean_squared_error") {
    thresholds.push_back(batch.leastSquaredError(quant_min, quant_max, /*with_offset=*/false).second);
  } else {
    thresholds = batch.thresholds(rule, quant_min, quant_max, /*shift=*/1e-6);
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
    checkCaller(
        std::isfinite(number), "the trained threshold of '", name, "' is ", number,
        ": lower the learning rate of the quantization parameters, and resume from a checkpoint");
  }
}

template <bool kCpu>
void prepareTqt(
    const Tensor& x, const Tensor& log2_threshold, const std::optional<Tensor>& fold, int64_t fold_axis,
    bool observe, bool enabled, string_view rule, int64_t quant_min, int64_t quant_max, Axis ch_axis,
    string_view group, string_view name) {
  const auto axis = wrapAxis(ch_axis, x);
  checkGrid(x, quant_min, quant_max);
  checkCount(log2_threshold, "log2_threshold", x, axis);
  const int64_t along = fold ? checkedFoldAxis(x, *fold, fold_axis, axis, name) : 0;
  if (observe && isUnset(log2_threshold)) {
    const FirstBatch batch(x, fold, along, axis, group, name);
    if (!batch.empty()) {
      assign(log2_threshold, firstThresholds(batch, rule, quant_min, quant_max));
    }
  }
  if (enabled && x.numel() > 0 && kCpu) {
    checkThreshold(log2_threshold, name);
  }
}

Tensor trainTqt(
    const Tensor& x, const Tensor& log2_threshold, const std::optional<Tensor>& fold, int64_t fold_axis,
    bool observe, bool enabled, string_view rule, int64_t quant_min, int64_t quant_max, Axis ch_axis,
    string_view rounding, string_view group, string_view name, string_view) {
  static const auto prepare = findOperator<decltype(prepareTqt<true>)>("jit_passes::prepare_tqt");
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
                    x, foldScale(scale, *fold), quant_min, quant_max, fold_axis, rounding)
              : callFakeQuantizeLearnable(x, scale, quant_min, quant_max, ch_axis, rounding);
}

const RegisterOp train_tqt_op{
    "train_tqt(Tensor x, Tensor(a!) log2_threshold, Tensor? fold, int fold_axis, bool observe, "
    "bool enabled, str rule, int quant_min, int quant_max, int? ch_axis, str rounding, str group, str name, "
    "str spec) -> Tensor",
    "Fake-quantize with a trained threshold that starts from the data (TQT).", composed(trainTqt)};
const RegisterOp prepare_tqt_op{
    "prepare_tqt(Tensor x, Tensor(a!) log2_threshold, Tensor? fold, int fold_axis, bool observe, "
    "bool enabled, str rule, int quant_min, int quant_max, int? ch_axis, str group, str name) -> ()",
    "Initialize a TQT threshold.", onCpu(prepareTqt<true>), onAnyDevice(prepareTqt<false>),
    onMeta(doNothing())};

} // namespace

Tensor scaleOfThreshold(const Tensor& log2_threshold, int64_t quant_min, int64_t quant_max) {
  static const auto op = findOperator<decltype(powerOfTwoScaleCpu)>("jit_passes::power_of_two_scale");
  const auto known = log2_threshold.detach();
  const auto scale = op.call(known, quant_min, quant_max);
  return scale * (1 + std::numbers::ln2 * (log2_threshold - known));
}

} // namespace jit_passes
