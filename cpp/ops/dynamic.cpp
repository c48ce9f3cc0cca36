// jit_passes::choose_qparams, quantize_dynamic and dequantize_dynamic: quantization with parameters chosen from the
// data of each call.
//
//   low, high = the range of x, or of each token (all but the last axis), widened to contain 0
//   affine:     scale = (high - low) / (quant_max - quant_min)
//               zero_point = quant_min - round(low / scale), within [quant_min, quant_max]
//   symmetric:  scale = 2 * max(-low, high) / (quant_max - quant_min)
//               zero_point = the middle of the codes
//   q = clamp(round(x / scale) + zero_point, quant_min, quant_max)
//   x = (q - zero_point) * scale
//
// The range form decides rounding and the smallest scale. "pytorch" equals `affine_qparams`
// (jit_passes/specification/qparams.py) for the range of the observer MinMax, to the bit. "fbgemm", affine only, equals
// PyTorch's dynamic kernels and `torch._choose_qparams_per_tensor`, to the bit: in double, with a scale of at least
// 6.1e-5. See chooseFbgemm.
//
// A tensor without elements has the range of a single 0. The range is the range of the finite numbers. NaN and
// infinity give NaN in the result, as in products of floats. The scale of their token is NaN, or the scale of a
// tensor gets the shape of x, with NaN at their places. There are no errors.
//
// The codes equal the codes of jit_passes::quantize.
#include "kernels.h"
#include "rounding.h"

namespace jit_passes {
namespace {

using at::Tensor;
using c10::string_view;

struct Chosen {
  Tensor scale, zero_point; // in the dtype in which they were computed
};

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::pair<Tensor, Tensor> rangeOf(const Tensor& values, bool per_token) {
  const Tensor zero = at::zeros({}, values.options());
  if (per_token && values.dim() > 0) {
    if (values.size(-1) == 0) {
      auto shape = values.sizes().vec();
      shape.back() = 1;
      const Tensor none = at::zeros(shape, values.options());
      return {none, none};
    }
    return {at::minimum(at::amin(values, -1, true), zero), at::maximum(at::amax(values, -1, true), zero)};
  }
  if (values.numel() == 0) {
    return {zero, zero};
  }
  const auto [low, high] = at::aminmax(values);
  return {at::minimum(low, zero), at::maximum(high, zero)};
}

// At least 2**-60, or 2**-23 if the scale is 0. A NaN stays NaN.
Tensor usable(const Tensor& scale) {
  const auto zero = at::eq(scale, 0);
  return at::where(zero, std::numeric_limits<float>::epsilon(), at::clamp_min(scale, 0x1p-60));
}

// Each operation rounds to float32, as in PyTorch's observers.
Chosen chooseAffine(const Tensor& low, const Tensor& high, int64_t quant_min, int64_t quant_max) {
  const auto steps = static_cast<double>(quant_max - quant_min);
  const Tensor span = high - low; // may be infinite for finite numbers
  const Tensor wide = ((high.to(at::kDouble) - low.to(at::kDouble)) / steps).to(at::kFloat);
  const Tensor scale = usable(at::where(at::isinf(span), wide, span / steps));
  const Tensor zero_point = static_cast<double>(quant_min) - at::round(low / scale).to(at::kDouble);
  return {scale, at::clamp(zero_point, quant_min, quant_max)};
}

Chosen chooseSymmetric(const Tensor& low, const Tensor& high, int64_t quant_min, int64_t quant_max) {
  const auto steps = static_cast<double>(quant_max - quant_min);
  const Tensor scale = (2 * at::maximum(-low, high).to(at::kDouble) / steps).to(at::kFloat);
  const auto middle = static_cast<double>((quant_min + quant_max + 1) >> 1);
  return {usable(scale), at::full_like(scale, middle)};
}

// In double:
//
//   scale = (high - low) / (quant_max - quant_min), or 0.1 if its reciprocal is infinite in float32
//   below 6.1e-5 that is the scale, and the ends move out in proportion
//   zero_point = quant_min - low / scale, or quant_max - high / scale, whichever adds the smaller numbers
//
// ChooseQuantizationParams in PyTorch's ATen/native/quantized/cpu/QuantUtils.h.
Chosen chooseFbgemm(const Tensor& low, const Tensor& high, int64_t quant_min, int64_t quant_max) {
  constexpr float smallest = 6.1e-5f;
  const auto bottom = static_cast<double>(quant_min), top = static_cast<double>(quant_max);
  const Tensor least = low.to(at::kDouble), most = high.to(at::kDouble);
  Tensor scale = (most - least) / (top - bottom);
  scale = at::where(at::isinf(at::reciprocal(scale.to(at::kFloat))), 0.1, scale);
  const Tensor small = at::lt(scale, smallest), found = scale.to(at::kFloat);
  scale = at::where(small, static_cast<double>(smallest), scale);
  const Tensor amplifier = smallest / found;
  const double whole = smallest * static_cast<float>(quant_max - quant_min);
  const auto moved = [&](const Tensor& end, const Tensor& other, double alone) {
    const Tensor amplified = (end.to(at::kFloat) * amplifier).to(at::kDouble);
    const Tensor out = at::where(at::eq(other, 0), alone, amplified);
    return at::where(at::logical_and(small, at::ne(end, 0)), out, end);
  };
  const Tensor below = moved(least, most, -whole) / scale, above = moved(most, least, whole) / scale;
  const Tensor from_bottom = at::lt(std::abs(bottom) - at::abs(below), std::abs(top) - at::abs(above));
  const Tensor exact = at::where(from_bottom, bottom - below, top - above);
  return {scale, at::round(at::clamp(exact, bottom, top))};
}

bool isPerToken(string_view qscheme) {
  return qscheme == "per_token_affine" || qscheme == "per_token_symmetric";
}

// A number that is not finite makes the scale NaN.
Chosen choose(
    const Tensor& values, int64_t quant_min, int64_t quant_max, string_view qscheme, string_view range_form) {
  const bool per_token = isPerToken(qscheme);
  const bool symmetric = qscheme == "per_tensor_symmetric" || qscheme == "per_token_symmetric";
  TORCH_CHECK(
      per_token || symmetric || qscheme == "per_tensor_affine",
      "parameters that are chosen as the model runs are affine or symmetric, per tensor or per token, not '",
      qscheme, "'");
  const bool fbgemm = range_form == "fbgemm";
  TORCH_CHECK(
      range_form == "pytorch" || (fbgemm && !symmetric), "there is no range form '", range_form, "' of ",
      qscheme, ": it is pytorch, or for affine ones fbgemm");
  const auto [low, high] = rangeOf(values, per_token);
  const auto form = symmetric ? chooseSymmetric : fbgemm ? chooseFbgemm : chooseAffine;
  const Chosen chosen = form(low, high, quant_min, quant_max);
  const Tensor finite = at::logical_and(at::isfinite(low), at::isfinite(high));
  return {
      at::where(finite, chosen.scale, kNaN).to(at::kFloat),
      at::where(finite, chosen.zero_point, static_cast<double>(quant_min)).to(at::kInt)};
}

std::tuple<Tensor, Tensor> chooseQParams(
    const Tensor& x, int64_t quant_min, int64_t quant_max, string_view qscheme, string_view range_form) {
  checkGrid(x, quant_min, quant_max);
  const Tensor values = x.detach().to(at::kFloat);
  const Chosen chosen = choose(values, quant_min, quant_max, qscheme, range_form);
  if (isPerToken(qscheme) || !chosen.scale.isnan().item<bool>()) {
    return {chosen.scale, chosen.zero_point};
  }
  const Tensor finite = at::isfinite(values);
  const Chosen of_finite = choose(at::where(finite, values, 0), quant_min, quant_max, qscheme, range_form);
  return {at::where(finite, of_finite.scale, kNaN), of_finite.zero_point};
}

// Not clamped, and undefined if the scale is NaN.
Tensor codesOf(const Tensor& x, const Tensor& scale, const Tensor& zero_point) {
  return codeOf<HalfEven>(x.to(at::kFloat), scale, zero_point, /*per_channel=*/false);
}

Tensor quantizeDynamic(
    const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t quant_min, int64_t quant_max,
    at::ScalarType dtype) {
  checkGrid(x, quant_min, quant_max);
  checkRange(dtype, quant_min, quant_max);
  const auto codes = codesOf(x, scale, zero_point);
  const auto known = at::where(at::isnan(codes), zero_point.to(at::kFloat), codes);
  return at::clamp(known, quant_min, quant_max).to(dtype);
}

Tensor dequantizeDynamic(const Tensor& q, const Tensor& scale, const Tensor& zero_point) {
  return (q.to(at::kInt) - zero_point).to(at::kFloat) * scale;
}

// The gradient passes everywhere: no number is outside of the range, and clamping changes a number by half a step at
// most.
Tensor trainDynamic(
    const Tensor& x, int64_t quant_min, int64_t quant_max, string_view qscheme, string_view range_form,
    bool enabled, string_view, string_view) {
  if (!enabled) {
    return x.clone();
  }
  Tensor rounded;
  {
    const at::NoGradGuard guard;
    const auto [scale, zero_point] = chooseQParams(x, quant_min, quant_max, qscheme, range_form);
    const auto codes = at::clamp(codesOf(x, scale, zero_point), quant_min, quant_max);
    rounded = ((codes - zero_point) * scale).to(x.scalar_type());
  }
  return rounded + (x - x.detach()); // 0, with the gradient
}

const RegisterOp choose_qparams_op{
    "choose_qparams(Tensor x, int quant_min, int quant_max, str qscheme, str range_form) -> "
    "(Tensor scale, Tensor zero_point)",
    "Scale and zero point of the numbers at hand, for the tensor or for each token.",
    onAnyDevice(chooseQParams)};
const RegisterOp quantize_dynamic_op{
    "quantize_dynamic(Tensor x, Tensor scale, Tensor zero_point, int quant_min, int quant_max, "
    "ScalarType dtype) -> Tensor",
    "Float to integers, with the parameters that choose_qparams gives.", onAnyDevice(quantizeDynamic)};
const RegisterOp dequantize_dynamic_op{
    "dequantize_dynamic(Tensor q, Tensor scale, Tensor zero_point) -> Tensor",
    "Integers to float, with the parameters that choose_qparams gives.", onAnyDevice(dequantizeDynamic)};
const RegisterOp train_dynamic_op{
    "train_dynamic(Tensor x, int quant_min, int quant_max, str qscheme, str range_form, bool enabled, str "
    "name, "
    "str spec) -> Tensor",
    "Fake-quantize with the parameters of the numbers at hand, straight through.", composed(trainDynamic)};

} // namespace
} // namespace jit_passes
