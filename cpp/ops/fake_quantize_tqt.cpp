// jit_passes::fake_quantize_tqt: fake quantization with a threshold that is trained, its scale a power
// of two (TQT).
//
//   scale = 2^ceil(log2_threshold) / 2^(b - 1) with signs, / 2^b without
//   code  = round(x / scale)                                            halves to even
//   x^    = clip(code, quant_min, quant_max) * scale
//   dx    = g where quant_min <= code <= quant_max, else 0
//   d log2_threshold = scale * ln 2 * sum of g * { code - x / scale   where quant_min <= code <= quant_max
//                                                { quant_min          below
//                                                { quant_max          above
//
// The ceiling is passed straight through. The denominator is the smallest power of two that reaches
// -quant_min and is above quant_max, which holds for narrow ranges as [-127, 127] too. The mask is that of
// the rounded number: x / scale = 127.4 is 127, and within. A function that takes rounding for the
// identity before it differentiates, as TensorFlow's FakeQuant, has no term within the range, so its
// threshold sees what clipping costs and never what wide steps cost.
//
// The forward is fake_quantize with a zero point of 0. The scale is a float32 with a float32 for its
// inverse: other thresholds are errors on the CPU, and not a number elsewhere. There is no second
// derivative.
//
// Source: Jain et al., "Trained Quantization Thresholds", arXiv:1903.08066, equations 4, 7 and 8.
#include <numbers>

#include "fake_quantize.h"
#include "trained_quantization.h"

namespace jit_passes {
namespace {

using at::Tensor;

struct SlopeOfRounded {
  template <typename Number>
  static Slope<Number> of(Number steps, Number low, Number high) {
    const Number code = nearestEven(steps);
    const bool inside = (code >= low) & (code <= high);
    return {inside, inside ? code - steps : clampTo(code, low, high)};
  }
  static std::pair<Tensor, Tensor> of(const Tensor& steps, int64_t low, int64_t high) {
    const auto code = at::round(steps);
    const auto inside = at::logical_and(at::ge(code, low), at::le(code, high));
    return {inside, at::where(inside, code - steps, at::clamp(code, low, high))};
  }
};

// log2 of the scale's denominator.
int checkedBits(const Tensor& x, int64_t quant_min, int64_t quant_max) {
  checkGrid(x, quant_min, quant_max);
  TORCH_CHECK(
      quant_min <= 0 && quant_max > 0, "the range [", quant_min, ", ", quant_max,
      "] must hold 0 and a number above it: the scale follows from the number of bits");
  int bits = 0;
  while ((int64_t(1) << bits) < std::max(-quant_min, quant_max + 1)) {
    ++bits;
  }
  return bits;
}

Tensor scaleCpu(const Tensor& log2_threshold, int bits) {
  auto scale = log2_threshold.detach().to(at::kDouble).contiguous().clone();
  double* data = scale.mutable_data_ptr<double>();
  for (int64_t i = 0; i < scale.numel(); ++i) {
    const double exponent = std::ceil(data[i]) - bits;
    TORCH_CHECK(
        exponent >= -126 && exponent <= 126, "log2_threshold ", data[i], " makes the scale 2^", exponent,
        ", which must lie between 2^-126 and 2^126: start from the log2 of the largest value");
    data[i] = std::ldexp(1.0, static_cast<int>(exponent));
  }
  return scale.to(at::kFloat);
}

Tensor scaleByOperators(const Tensor& log2_threshold, int bits) {
  const auto exponent = at::ceil(log2_threshold.detach().to(at::kFloat)) - bits;
  const auto known = at::logical_and(at::ge(exponent, -126), at::le(exponent, 126));
  const auto scale = at::ldexp(at::ones({}, exponent.options()), at::where(known, exponent, 0));
  return at::where(known, scale, std::numeric_limits<float>::quiet_NaN());
}

using MakeScale = Tensor(const Tensor&, int);

template <MakeScale makeScale>
Tensor fakeQuantizeTqt(
    const Tensor& x, const Tensor& log2_threshold, int64_t quant_min, int64_t quant_max,
    std::optional<int64_t> ch_axis) {
  checkCount(log2_threshold, "log2_threshold", x, wrapAxis(ch_axis, x));
  const auto scale = makeScale(log2_threshold, checkedBits(x, quant_min, quant_max));
  return callFakeQuantize(x, scale, at::zeros_like(scale), quant_min, quant_max, ch_axis, "half_even");
}

template <MakeScale makeScale, auto findGradients>
std::tuple<Tensor, Tensor> backward(
    const Tensor& gradient, const Tensor& x, const Tensor& log2_threshold, int64_t quant_min,
    int64_t quant_max, std::optional<int64_t> ch_axis) {
  const auto axis = wrapAxis(ch_axis, x);
  checkCount(log2_threshold, "log2_threshold", x, axis);
  const auto scale = makeScale(log2_threshold, checkedBits(x, quant_min, quant_max));
  const auto found = findGradients(gradient, x, scale, Tensor(), quant_min, quant_max, axis);
  const auto of_scale = scale.reshape({-1}).to(found.slopes.scalar_type()) * std::numbers::ln2;
  return {found.x, gradientOf(log2_threshold, of_scale * found.slopes)};
}

Tensor fakeQuantizeTqtMeta(const Tensor& x, const Tensor&, int64_t, int64_t, std::optional<int64_t>) {
  return at::empty_like(x);
}

std::tuple<Tensor, Tensor> backwardMeta(
    const Tensor&, const Tensor& x, const Tensor& log2_threshold, int64_t, int64_t, std::optional<int64_t>) {
  return {at::empty_like(x), at::empty_like(log2_threshold)};
}

class FakeQuantizeTqt : public torch::autograd::Function<FakeQuantizeTqt> {
 public:
  static Tensor forward(
      torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& log2_threshold,
      int64_t quant_min, int64_t quant_max, std::optional<int64_t> ch_axis) {
    static const auto op =
        findOperator<Tensor(const Tensor&, const Tensor&, int64_t, int64_t, std::optional<int64_t>)>(
            "jit_passes::fake_quantize_tqt");
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, log2_threshold});
    context->saved_data["quant_min"] = quant_min;
    context->saved_data["quant_max"] = quant_max;
    context->saved_data["ch_axis"] = ch_axis;
    return op.call(x, log2_threshold, quant_min, quant_max, ch_axis);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    static const auto op = findOperator<std::tuple<Tensor, Tensor>(
        const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, std::optional<int64_t>)>(
        "jit_passes::fake_quantize_tqt_backward");
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    torch::autograd::variable_list result(5);
    std::tie(result[0], result[1]) = op.call(
        gradients[0], saved[0], saved[1], data["quant_min"].toInt(), data["quant_max"].toInt(),
        data["ch_axis"].toOptional<int64_t>());
    return result;
  }
};

Tensor fakeQuantizeTqtAutograd(
    const Tensor& x, const Tensor& log2_threshold, int64_t quant_min, int64_t quant_max,
    std::optional<int64_t> ch_axis) {
  return FakeQuantizeTqt::apply(x, log2_threshold, quant_min, quant_max, ch_axis);
}

const RegisterOp forward_op{
    "fake_quantize_tqt", "Fake-quantize with a trained threshold, its scale a power of two (TQT)."};
const RegisterOp backward_op{"fake_quantize_tqt_backward", "Its gradients, in one pass over memory."};

TORCH_LIBRARY_FRAGMENT(jit_passes, m) {
  m.def(
      "fake_quantize_tqt(Tensor x, Tensor log2_threshold, int quant_min, int quant_max, "
      "int? ch_axis=None) -> Tensor");
  m.def(
      "fake_quantize_tqt_backward(Tensor gradient, Tensor x, Tensor log2_threshold, int quant_min, "
      "int quant_max, int? ch_axis=None) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(jit_passes, CPU, m) {
  m.impl("fake_quantize_tqt", fakeQuantizeTqt<scaleCpu>);
  m.impl("fake_quantize_tqt_backward", backward<scaleCpu, gradientsOnCpu<SlopeOfRounded>>);
}

TORCH_LIBRARY_IMPL(jit_passes, CompositeExplicitAutograd, m) {
  m.impl("fake_quantize_tqt", fakeQuantizeTqt<scaleByOperators>);
  m.impl("fake_quantize_tqt_backward", backward<scaleByOperators, gradientsByOperators<SlopeOfRounded>>);
}

TORCH_LIBRARY_IMPL(jit_passes, Meta, m) {
  m.impl("fake_quantize_tqt", fakeQuantizeTqtMeta);
  m.impl("fake_quantize_tqt_backward", backwardMeta);
}

TORCH_LIBRARY_IMPL(jit_passes, Autograd, m) {
  m.impl("fake_quantize_tqt", fakeQuantizeTqtAutograd);
  m.impl("fake_quantize_tqt_backward", torch::autograd::autogradNotImplementedFallback());
}

} // namespace
} // namespace jit_passes
