// jit_passes::fake_quantize_learnable: fake quantization with a gradient for its scale, by the mask of
// fake_quantize.
//
//   code = round(x / scale)
//   x^   = clamp(code, quant_min, quant_max) * scale
//   dx   = g where quant_min <= code <= quant_max, else 0
//   d scale = sum of g * { code - x / scale   where quant_min <= code <= quant_max
//                        { quant_min          below
//                        { quant_max          above
//
// What PyTorch's _fake_quantize_learnable_per_tensor_affine has, with a zero point of 0; LSQ's mask is
// that of x / scale. The forward is fake_quantize. There is no second derivative.
#include "fake_quantize.h"
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
    const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max,
    std::optional<int64_t> ch_axis, string_view rounding) {
  return callFakeQuantize(x, scale, at::zeros_like(scale), quant_min, quant_max, ch_axis, rounding);
}

template <bool kCpu>
std::tuple<Tensor, Tensor> learnableBackward(
    const Tensor& gradient, const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max,
    std::optional<int64_t> ch_axis, string_view rounding) {
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

// Sizes may be symbols here, which cannot be compared.
Tensor fakeQuantizeLearnableMeta(
    const Tensor& x, const Tensor&, int64_t, int64_t, std::optional<int64_t>, string_view) {
  return at::empty_like(x);
}

std::tuple<Tensor, Tensor> learnableBackwardMeta(
    const Tensor&, const Tensor& x, const Tensor& scale, int64_t, int64_t, std::optional<int64_t>,
    string_view) {
  return {at::empty_like(x), at::empty_like(scale)};
}

class FakeQuantizeLearnable : public torch::autograd::Function<FakeQuantizeLearnable> {
 public:
  static Tensor forward(
      torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& scale, int64_t quant_min,
      int64_t quant_max, std::optional<int64_t> ch_axis, string_view rounding) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, scale});
    context->saved_data["quant_min"] = quant_min;
    context->saved_data["quant_max"] = quant_max;
    context->saved_data["ch_axis"] = ch_axis;
    context->saved_data["rounding"] = std::string(rounding);
    return callFakeQuantizeLearnable(x, scale, quant_min, quant_max, ch_axis, rounding);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    static const auto op = findOperator<std::tuple<Tensor, Tensor>(
        const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, std::optional<int64_t>, string_view)>(
        "jit_passes::fake_quantize_learnable_backward");
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    torch::autograd::variable_list result(6);
    std::tie(result[0], result[1]) = op.call(
        gradients[0], saved[0], saved[1], data["quant_min"].toInt(), data["quant_max"].toInt(),
        data["ch_axis"].toOptional<int64_t>(), data["rounding"].toStringRef());
    return result;
  }
};

Tensor fakeQuantizeLearnableAutograd(
    const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max,
    std::optional<int64_t> ch_axis, string_view rounding) {
  return FakeQuantizeLearnable::apply(x, scale, quant_min, quant_max, ch_axis, rounding);
}

const RegisterOp fake_quantize_learnable_op{
    "fake_quantize_learnable(Tensor x, Tensor scale, int quant_min, int quant_max, int? ch_axis=None, "
    "str rounding=\"half_even\") -> Tensor",
    "Fake-quantize with a gradient for the scale, by the mask of codes.", onAnyDevice(fakeQuantizeLearnable),
    onMeta(fakeQuantizeLearnableMeta), withGradient(fakeQuantizeLearnableAutograd)};
const RegisterOp fake_quantize_learnable_backward_op{
    "fake_quantize_learnable_backward(Tensor gradient, Tensor x, Tensor scale, int quant_min, "
    "int quant_max, int? ch_axis=None, str rounding=\"half_even\") -> (Tensor, Tensor)",
    "Gradients of fake_quantize_learnable, in one pass over memory.",
    onCpu(learnableBackward<true>),
    onAnyDevice(learnableBackward<false>),
    onMeta(learnableBackwardMeta),
    withGradient(torch::autograd::autogradNotImplementedFallback())};

} // namespace

Tensor callFakeQuantizeLearnable(
    const Tensor& x, const Tensor& scale, int64_t quant_min, int64_t quant_max,
    std::optional<int64_t> ch_axis, string_view rounding) {
  static const auto op = findOperator<Tensor(
      const Tensor&, const Tensor&, int64_t, int64_t, std::optional<int64_t>, string_view)>(
      "jit_passes::fake_quantize_learnable");
  return op.call(x, scale, quant_min, quant_max, ch_axis, rounding);
}

} // namespace jit_passes
