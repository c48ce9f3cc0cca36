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

Tensor fakeQuantizeLsqMeta(
    const Tensor& x, const Tensor&, int64_t, int64_t, double, std::optional<int64_t>, int64_t) {
  return at::empty_like(x);
}

std::tuple<Tensor, Tensor> lsqBackwardMeta(
    const Tensor&, const Tensor& x, const Tensor& scale, int64_t, int64_t, double, std::optional<int64_t>) {
  return {at::empty_like(x), at::empty_like(scale)};
}

class FakeQuantizeLsq : public torch::autograd::Function<FakeQuantizeLsq> {
 public:
  static Tensor forward(
      torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& scale, int64_t quant_min,
      int64_t quant_max, double gradient_scale, std::optional<int64_t> ch_axis, int64_t zero_point) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, scale});
    context->saved_data["quant_min"] = quant_min;
    context->saved_data["quant_max"] = quant_max;
    context->saved_data["gradient_scale"] = gradient_scale;
    context->saved_data["ch_axis"] = ch_axis;
    return callFakeQuantizeLsq(x, scale, quant_min, quant_max, gradient_scale, ch_axis, zero_point);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    static const auto op = findOperator<std::tuple<Tensor, Tensor>(
        const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, double, std::optional<int64_t>)>(
        "jit_passes::fake_quantize_lsq_backward");
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    torch::autograd::variable_list result(7);
    std::tie(result[0], result[1]) = op.call(
        gradients[0], saved[0], saved[1], data["quant_min"].toInt(), data["quant_max"].toInt(),
        data["gradient_scale"].toDouble(), data["ch_axis"].toOptional<int64_t>());
    return result;
  }
};

Tensor fakeQuantizeLsqAutograd(
    const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max, double gradient_scale,
    std::optional<int64_t> ch_axis, int64_t zero_point) {
  return FakeQuantizeLsq::apply(x, scale, quant_min, quant_max, gradient_scale, ch_axis, zero_point);
}

const RegisterOp fake_quantize_lsq_op{
    "fake_quantize_lsq(Tensor x, Tensor scale, int quant_min, int quant_max, float gradient_scale, "
    "int? ch_axis=None, int zero_point=0) -> Tensor",
    "Fake-quantize with a trained scale (LSQ).", onAnyDevice(fakeQuantizeLsq), onMeta(fakeQuantizeLsqMeta),
    withGradient(fakeQuantizeLsqAutograd)};
const RegisterOp fake_quantize_lsq_backward_op{
    "fake_quantize_lsq_backward(Tensor gradient, Tensor x, Tensor scale, int quant_min, int quant_max, "
    "float gradient_scale, int? ch_axis=None) -> (Tensor, Tensor)",
    "Gradients of fake_quantize_lsq, in one pass over memory.",
    onCpu(lsqBackward<gradientsOnCpu<SlopeOfClip>>),
    onAnyDevice(lsqBackward<gradientsByOperators<SlopeOfClip>>),
    onMeta(lsqBackwardMeta),
    withGradient(torch::autograd::autogradNotImplementedFallback())};

} // namespace

Tensor callFakeQuantizeLsq(
    const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max, double gradient_scale,
    std::optional<int64_t> ch_axis, int64_t zero_point) {
  static const auto op = findOperator<Tensor(
      const Tensor&, const Tensor&, int64_t, int64_t, double, std::optional<int64_t>, int64_t)>(
      "jit_passes::fake_quantize_lsq");
  return op.call(x, scale, quant_min, quant_max, gradient_scale, ch_axis, zero_point);
}

} // namespace jit_passes
