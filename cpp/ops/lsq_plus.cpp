// jit_passes::fake_quantize_lsq_plus: fake quantization with a trained step size and a trained offset (LSQ+).
//
//   z  = (x - offset) / scale
//   x^ = round(clip(z, quant_min, quant_max)) * scale + offset          by `rounding`
//   dx = g where quant_min < z < quant_max, else 0
//   d scale  = gradient_scale * sum of g * { round(z) - z   where quant_min < z < quant_max
//                                          { quant_min      where z <= quant_min
//                                          { quant_max      where z >= quant_max
//   d offset = gradient_scale * sum of g where z <= quant_min or z >= quant_max
//
// The offset is a number in units of x, not rounded to whole steps, so 0 is on the grid only by chance. The mask
// depends on z before rounding, as in LSQ. There is no second derivative.
//
// jit_passes::train_lsq_plus: fake_quantize_lsq_plus with a scale and an offset that are initialized from the first
// batch, and an integer zero point.
//
//   [low, high] = the range of the first batch with the least squared error, if scale is infinite and observe
//   scale       = (high - low) / (quant_max - quant_min)
//   offset      = low - quant_min * scale
//   result      = fake_quantize_lsq_plus(x, scale, o, gradient_scale = 1 / sqrt(N * quant_max))
//   o           = clip(round(offset / scale), -quant_max, -quant_min) * scale
//
// o is a whole number of steps: the zero point is -o / scale. Its gradient goes straight through to the offset, and
// not to the scale, so both gradients are the paper's, at o. If a step of the optimizer moves the offset beyond an
// end, the offset is set to the end, so that the next step can move it back.
//
// Source: Bhalgat et al., "LSQ+: Improving low-bit quantization through learnable offsets and better
// initialization", arXiv:2004.09576.
#include "fake_quantize.h"
#include "first_batch.h"
#include "kernels.h"
#include "trained_quantization.h"
#include "training.h"

namespace jit_passes {
namespace {

using at::Tensor;
using c10::string_view;

template <typename Rounding, typename Number>
inline Number quantized(
    Number x, Number scale, Number inverse_scale, Number offset, Number low, Number high) {
  const Number code = Rounding::round(clampTo(inSteps(x - offset, scale, inverse_scale), low, high));
  return rounded(code * scale) + offset;
}

template <typename Rounding, typename Number>
JIT_PASSES_VECTORIZED void lsqPlusRow(
    const Number* x, Number* result, int64_t count, Number scale, Number offset, Number low, Number high) {
  const Number inverse_scale = inverseOf(scale);
  for (int64_t i = 0; i < count; ++i) {
    result[i] = quantized<Rounding>(x[i], scale, inverse_scale, offset, low, high);
  }
}

template <typename Rounding, typename Number>
JIT_PASSES_VECTORIZED void quantizeAcross(
    const Number* x, Number* result, int64_t count, const Number* scales, const Number* inverse_scales,
    const Number* offsets, Number low, Number high) {
  for (int64_t i = 0; i < count; ++i) {
    result[i] = quantized<Rounding>(x[i], scales[i], inverse_scales[i], offsets[i], low, high);
  }
}

template <typename Rounding, typename Number>
void runLsqPlus(const Tensor& x, Tensor& result, const Grid<Number>& grid, Axis axis) {
  const auto layout = channelLayout(x, axis);
  const Number* from = x.const_data_ptr<Number>();
  Number* to = result.mutable_data_ptr<Number>();
  overChannels(
      layout,
      [&](int64_t begin, int64_t count, int64_t channel) {
        lsqPlusRow<Rounding>(
            from + begin, to + begin, count, grid.scales[channel], grid.offsets[channel], grid.low,
            grid.high);
      },
      [&](int64_t begin) {
        quantizeAcross<Rounding>(
            from + begin, to + begin, layout.channels, grid.scales.data(), grid.inverse_scales.data(),
            grid.offsets.data(), grid.low, grid.high);
      });
}

Axis checkedAxis(
    const Tensor& x, const Tensor& scale, const Tensor& offset, int64_t quant_min, int64_t quant_max,
    Axis ch_axis) {
  const auto axis = wrapAxis(ch_axis, x);
  checkGrid(x, quant_min, quant_max);
  checkCount(scale, "scale", x, axis);
  checkCount(offset, "offset", x, axis);
  return axis;
}

Tensor fakeQuantizeLsqPlusCpu(
    const Tensor& x, const Tensor& scale, const Tensor& offset, int64_t quant_min, int64_t quant_max, double,
    Axis ch_axis, string_view rounding) {
  const auto axis = checkedAxis(x, scale, offset, quant_min, quant_max, ch_axis);
  const auto values = denseOf(x).to(computedIn(x));
  auto result = at::empty_strided(values.sizes(), values.strides(), values.options());
  const auto compute = [&](auto kind, auto number) {
    const Grid<decltype(number)> grid(scale, offset, quant_min, quant_max);
    runLsqPlus<decltype(kind)>(values, result, grid, axis);
  };
  dispatchRounding(
      rounding, [&](auto kind) { dispatchPrecision(values, [&](auto number) { compute(kind, number); }); });
  return result.to(x.scalar_type());
}

Tensor fakeQuantizeLsqPlusByOperators(
    const Tensor& x, const Tensor& scale, const Tensor& offset, int64_t quant_min, int64_t quant_max, double,
    Axis ch_axis, string_view rounding) {
  const auto axis = checkedAxis(x, scale, offset, quant_min, quant_max, ch_axis);
  const auto dtype = computedIn(x);
  const auto step = alongAxis(scale.to(dtype), x, axis), origin = alongAxis(offset.to(dtype), x, axis);
  const auto steps = at::clamp(inSteps(x.to(dtype) - origin, step), quant_min, quant_max);
  const auto code = dispatchRounding(rounding, [&](auto kind) { return decltype(kind)::round(steps); });
  return (code * step + origin).to(x.scalar_type());
}

template <bool kCpu>
std::tuple<Tensor, Tensor, Tensor> lsqPlusBackward(
    const Tensor& gradient, const Tensor& x, const Tensor& scale, const Tensor& offset, int64_t quant_min,
    int64_t quant_max, double gradient_scale, Axis ch_axis, string_view rounding) {
  const auto axis = checkedAxis(x, scale, offset, quant_min, quant_max, ch_axis);
  const auto found = dispatchRounding(rounding, [&](auto kind) {
    using Rule = SlopeOfClip<decltype(kind)>;
    constexpr auto findGradients = kCpu ? gradientsOnCpu<Rule, true> : gradientsByOperators<Rule>;
    return findGradients(gradient, x, scale, offset, quant_min, quant_max, axis);
  });
  return {
      found.x, gradientOf(scale, gradient_scale * found.slopes),
      gradientOf(offset, gradient_scale * found.outside)};
}

const RegisterOp fake_quantize_lsq_plus_op{
    "fake_quantize_lsq_plus(Tensor x, Tensor scale, Tensor offset, int quant_min, int quant_max, "
    "float gradient_scale, int? ch_axis=None, str rounding=\"half_even\") -> Tensor",
    "Fake-quantize with a trained scale and offset (LSQ+).",
    onCpu(fakeQuantizeLsqPlusCpu),
    onAnyDevice(fakeQuantizeLsqPlusByOperators),
    onMeta(likeOperands()),
    withGradient(byBackward())};
const RegisterOp fake_quantize_lsq_plus_backward_op{
    "fake_quantize_lsq_plus_backward(Tensor gradient, Tensor x, Tensor scale, Tensor offset, "
    "int quant_min, int quant_max, float gradient_scale, int? ch_axis=None, "
    "str rounding=\"half_even\") -> (Tensor, Tensor, Tensor)",
    "Gradients of fake_quantize_lsq_plus, in one pass over memory.",
    onCpu(lsqPlusBackward<true>),
    onAnyDevice(lsqPlusBackward<false>),
    onMeta(likeOperands()),
    withGradient(torch::autograd::autogradNotImplementedFallback())};

// On other devices the check whether an offset is beyond the ends would wait for the device.
template <bool kCpu>
void guardOffset(const Tensor& offset, const Tensor& scale, int64_t quant_min, int64_t quant_max) {
  const auto step = scale.reshape(offset.sizes());
  const auto nearest = at::minimum(at::maximum(offset, -quant_max * step), -quant_min * step);
  if (!kCpu || !at::equal(nearest, offset)) {
    at::AutoDispatchBelowADInplaceOrView guard; // also keeps the version counter, which backward compares
    offset.copy_(nearest);
  }
}

template <bool kCpu>
void prepareLsqPlus(
    const Tensor& x, const Tensor& scale, const Tensor& offset, const Tensor& corrections, bool observe,
    bool enabled, int64_t quant_min, int64_t quant_max, string_view group, string_view name) {
  checkGrid(x, quant_min, quant_max);
  checkCount(scale, "scale", x, std::nullopt);
  checkCount(offset, "offset", x, std::nullopt);
  if (observe && isUnset(scale)) {
    const FirstBatch batch(x, std::nullopt, 0, std::nullopt, group, name);
    if (!batch.empty()) {
      const auto [low, high] = batch.leastSquaredError(quant_min, quant_max, /*with_offset=*/true);
      const double step = std::max((high - low) / static_cast<double>(quant_max - quant_min), kSmallestScale);
      // If all numbers are equal, as after a gamma of 0, the range begins in the middle: at the ends there is no
      // gradient.
      const int64_t first = low < high ? quant_min : (quant_min + quant_max + 1) / 2;
      assign(scale, {step});
      assign(offset, {low - static_cast<double>(first) * step});
    }
  }
  if (enabled && x.numel() > 0) {
    guardScale<kCpu>(scale, corrections, name);
    checkCaller(
        !kCpu || std::isfinite(offset.item<double>()), "the trained offset of '", name, "' is ", offset,
        ": lower the learning rate of the quantization parameters, and resume from a checkpoint");
    guardOffset<kCpu>(offset, scale, quant_min, quant_max);
  }
}

Tensor trainLsqPlus(
    const Tensor& x, const Tensor& scale, const Tensor& offset, const Tensor& corrections, bool observe,
    bool enabled, bool per_sample, int64_t quant_min, int64_t quant_max, string_view rounding,
    string_view group, string_view name, string_view) {
  static const auto prepare = findOperator<decltype(prepareLsqPlus<true>)>("jit_passes::prepare_lsq_plus");
  static const auto quantize =
      findOperator<decltype(fakeQuantizeLsqPlusCpu)>("jit_passes::fake_quantize_lsq_plus");
  callWithoutGradient(
      prepare, x, scale, offset, corrections, observe, enabled, quant_min, quant_max, group, name);
  if (!enabled) {
    return x.clone();
  }
  if (x.sym_numel() == 0) {
    return ofNothing(x, scale, offset);
  }
  const auto known = offset.detach(), step = scale.detach();
  const auto whole =
      (offset - known) + // 0, with the gradient
      callFakeQuantizeLearnable(known, step, -quant_max, -quant_min, std::nullopt, "half_even");
  return quantize.call(
      x, scale, whole, quant_min, quant_max, gradientScale(x, quant_max, std::nullopt, per_sample),
      std::nullopt, rounding);
}

const RegisterOp train_lsq_plus_op{
    "train_lsq_plus(Tensor x, Tensor(a!) scale, Tensor(b!) offset, Tensor(c!) corrections, bool observe, "
    "bool enabled, bool per_sample, int quant_min, int quant_max, str rounding, str group, str name, "
    "str spec) -> Tensor",
    "Fake-quantize with a trained scale and zero point that start from the data (LSQ+).",
    composed(trainLsqPlus)};
const RegisterOp prepare_lsq_plus_op{
    "prepare_lsq_plus(Tensor x, Tensor(a!) scale, Tensor(b!) offset, Tensor(c!) corrections, bool observe, "
    "bool enabled, int quant_min, int quant_max, str group, str name) -> ()",
    "Initialize LSQ+'s scale and offset, and keep the scale positive.", onCpu(prepareLsqPlus<true>),
    onAnyDevice(prepareLsqPlus<false>), onMeta(doNothing())};

} // namespace
} // namespace jit_passes
