// jit_passes::fake_quantize_learnable: fake quantization with a gradient for its scale and the mask of
// fake_quantize.
//
//   code = round(x / scale)
//   x^   = clamp(code, quant_min, quant_max) * scale
//   dx   = g where quant_min <= code <= quant_max, else 0
//   d scale = sum of g * { code - x / scale   where quant_min <= code <= quant_max
//                        { quant_min          below
//                        { quant_max          above
//
// It equals PyTorch's _fake_quantize_learnable_per_tensor_affine with zero point 0. LSQ differs: its mask depends on
// x / scale before rounding. The forward is fake_quantize. There is no second derivative.
#include "fake_quantize.h"
#include "kernels.h"
#include "rounding.h"
#include "trained_quantization.h"

namespace jit_passes {
namespace {

using at::Tensor;
using c10::string_view;

template <typename Rounding>
struct SlopeOfRounded {
  template <typename Number>
  static Slope<Number> of(Number steps, Number low, Number high) {
    const Number code = Rounding::round(steps);
    const bool inside = (code >= low) & (code <= high);
    return {inside, inside ? code - steps : clampTo(code, low, high)};
  }
  static std::pair<Tensor, Tensor> of(const Tensor& steps, int64_t low, int64_t high) {
    const auto code = Rounding::round(steps);
    const auto inside = at::logical_and(at::ge(code, low), at::le(code, high));
    return {inside, at::where(inside, code - steps, at::clamp(code, low, high))};
  }
};

Tensor fakeQuantizeLearnable(
    const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max, Axis ch_axis,
    string_view rounding) {
  return callFakeQuantize(x, scale, at::zeros_like(scale), quant_min, quant_max, ch_axis, rounding);
}

template <bool kCpu>
std::tuple<Tensor, Tensor> learnableBackward(
    const Tensor& gradient, const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max,
    Axis ch_axis, string_view rounding) {
  const auto axis = wrapAxis(ch_axis, x);
  checkGrid(x, quant_min, quant_max);
  checkCount(scale, "scale", x, axis);
  const auto found = dispatchRounding(rounding, [&](auto kind) {
    using Rule = SlopeOfRounded<decltype(kind)>;
    constexpr auto findGradients = kCpu ? gradientsOnCpu<Rule> : gradientsByOperators<Rule>;
    return findGradients(gradient, x, scale, Tensor(), quant_min, quant_max, axis);
  });
  return {found.x, gradientOf(scale, found.slopes)};
}

const RegisterOp fake_quantize_learnable_op{
    "fake_quantize_learnable(Tensor x, Tensor scale, int quant_min, int quant_max, int? ch_axis=None, "
    "str rounding=\"half_even\") -> Tensor",
    "Fake-quantize with a gradient for the scale, by the mask of codes.", onAnyDevice(fakeQuantizeLearnable),
    onMeta(likeOperands()), withGradient(byBackward())};
const RegisterOp fake_quantize_learnable_backward_op{
    "fake_quantize_learnable_backward(Tensor gradient, Tensor x, Tensor scale, int quant_min, "
    "int quant_max, int? ch_axis=None, str rounding=\"half_even\") -> (Tensor, Tensor)",
    "Gradients of fake_quantize_learnable, in one pass over memory.",
    onCpu(learnableBackward<true>),
    onAnyDevice(learnableBackward<false>),
    onMeta(likeOperands()),
    withGradient(torch::autograd::autogradNotImplementedFallback())};

} // namespace

Tensor callFakeQuantizeLearnable(
    const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max, Axis ch_axis,
    string_view rounding) {
  static const auto op =
      findOperator<decltype(callFakeQuantizeLearnable)>("jit_passes::fake_quantize_learnable");
  return op.call(x, scale, quant_min, quant_max, ch_axis, rounding);
}

} // namespace jit_passes
