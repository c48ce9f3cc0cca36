// jit_passes::fake_quantize_lsq: fake quantization with a step size that is trained (LSQ).
//
//   v  = x / scale
//   x^ = round(clip(v, quant_min, quant_max)) * scale                  halves to even
//   dx = g where quant_min < v < quant_max, else 0
//   d scale = gradient_scale * sum of g * { round(v) - v   where quant_min < v < quant_max
//                                         { quant_min      where v <= quant_min
//                                         { quant_max      where v >= quant_max
//
// The paper's gradient_scale is 1 / sqrt(numbers * quant_max). The mask is that of v before it is
// rounded, ends excluded: v = 127.4 is beyond 127. PyTorch's _fake_quantize_learnable_per_tensor_affine
// and TQT look at the rounded one.
//
// The forward is fake_quantize: rounding keeps the order, and whole numbers. Codes count from `zero_point`, which
// changes last bits only: next to a tie, rounding gives the code that quantize will give with that zero point.
// There is no second derivative.
//
// Source: Esser et al., "Learned Step Size Quantization", arXiv:1902.08153, equations 1 to 3.
#include "fake_quantize.h"
#include "kernels.h"
#include "trained_quantization.h"

namespace jit_passes {
namespace {

using at::Tensor;

Tensor fakeQuantizeLsq(
    const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max, double,
    std::optional<int64_t> ch_axis, int64_t zero_point) {
  checkCount(scale, "scale", x, wrapAxis(ch_axis, x));
  return callFakeQuantize(
      x, scale, at::full_like(scale, zero_point), quant_min + zero_point, quant_max + zero_point, ch_axis,
      "half_even");
}

template <auto findGradients>
std::tuple<Tensor, Tensor> lsqBackward(
    const Tensor& gradient, const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max,
    double gradient_scale, std::optional<int64_t> ch_axis) {
  const auto axis = wrapAxis(ch_axis, x);
  checkGrid(x, quant_min, quant_max);
  checkCount(scale, "scale", x, axis);
  const auto found = findGradients(gradient, x, scale, Tensor(), quant_min, quant_max, axis);
  return {found.x, gradientOf(scale, gradient_scale * found.slopes)};
}

const RegisterOp fake_quantize_lsq_op{
    "fake_quantize_lsq(Tensor x, Tensor scale, int quant_min, int quant_max, float gradient_scale, "
    "int? ch_axis=None, int zero_point=0) -> Tensor",
    "Fake-quantize with a trained scale (LSQ).", onAnyDevice(fakeQuantizeLsq), onMeta(likeOperands()),
    withGradient(byBackward())};
const RegisterOp fake_quantize_lsq_backward_op{
    "fake_quantize_lsq_backward(Tensor gradient, Tensor x, Tensor scale, int quant_min, int quant_max, "
    "float gradient_scale, int? ch_axis=None) -> (Tensor, Tensor)",
    "Gradients of fake_quantize_lsq, in one pass over memory.",
    onCpu(lsqBackward<gradientsOnCpu<SlopeOfClip>>),
    onAnyDevice(lsqBackward<gradientsByOperators<SlopeOfClip>>),
    onMeta(likeOperands()),
    withGradient(torch::autograd::autogradNotImplementedFallback())};

} // namespace
} // namespace jit_passes
