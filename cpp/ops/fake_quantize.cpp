// jit_passes::fake_quantize: quantize and dequantize in one step, in float, with a gradient.
//
//   code = round(x / scale) + zero_point
//   x^   = (clamp(code, quant_min, quant_max) - zero_point) * scale
//   dx   = g where quant_min <= code <= quant_max, else 0          (straight through)
//
// The numbers equal quantize followed by dequantize, and so PyTorch's: see CodeOf. Roundings other than half_even
// apply to the code, zero point included, as in QONNX's Quant: half_away and toward_zero are symmetric about code 0.
// Half types are computed in float32 and rounded once, at the end; doubles in double, with a true division, so that
// references are exact. A NaN stays NaN, and its gradient is 0. A negative scale mirrors the grid.
//
// The mask of the gradient is saved as bool rather than recomputed from x. Forward and backward then move 18 bytes
// for each float32 instead of 20, autograd holds 1 byte instead of 4, and a later write to x does not change the
// gradient. Without a gradient there is no mask.
//
// The values of scales are checked on the CPU only: on other devices the check would wait for the device.
//
// jit_passes::train_fixed: fake_quantize with a fixed scale and zero point, for example for a sigmoid's result.
#include "fake_quantize.h"

#include <torch/csrc/autograd/custom_function.h>

#include <bit>

#include "kernels.h"
#include "rounding.h"
#include "vectorize.h"

namespace jit_passes {
namespace {

using at::Tensor;
using c10::string_view;

template <bool kMasked, typename Number>
inline void fakeQuantizeOne(
    Number code, Number* result, bool* inside, Number scale, Number zero_point, Number low, Number high) {
  *result = (clampTo(code, low, high) - zero_point) * scale;
  if constexpr (kMasked) {
    *inside = (code >= low) & (code <= high);
  }
}

template <typename Rounding, bool kMasked, typename Number>
JIT_PASSES_VECTORIZED void fakeQuantizeRow(
    const Number* x, Number* result, bool* inside, int64_t count, CodeOf<Rounding, Number> code_of,
    Number low, Number high) {
  for (int64_t i = 0; i < count; ++i) {
    fakeQuantizeOne<kMasked>(
        code_of(x[i]), result + i, inside + i, code_of.scale, code_of.zero_point, low, high);
  }
}

// Channels side by side: each element has a grid of its own.
template <typename Rounding, bool kMasked, typename Number>
JIT_PASSES_VECTORIZED void fakeQuantizeAcross(
    const Number* x, Number* result, bool* inside, int64_t count, const Number* scales,
    const Number* inverse_scales, const Number* zero_points, Number low, Number high) {
  for (int64_t i = 0; i < count; ++i) {
    const Number code = codeOfChannel<Rounding>(x[i], scales[i], inverse_scales[i], zero_points[i]);
    fakeQuantizeOne<kMasked>(code, result + i, inside + i, scales[i], zero_points[i], low, high);
  }
}

JIT_PASSES_VECTORIZED void maskRow(const float* gradient, const bool* inside, float* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto all_or_none = -static_cast<uint32_t>(inside[i]); // a conditional would become a branch
    result[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(gradient[i]) & all_or_none);
  }
}

void checkArguments(
    const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t quant_min, int64_t quant_max,
    Axis axis) {
  checkGrid(x, quant_min, quant_max);
  const int64_t expected = axis ? x.size(*axis) : 1;
  TORCH_CHECK(
      scale.numel() == expected && zero_point.numel() == expected, expected, " scale and zero_point for ",
      axis ? "the channels of ch_axis" : "the tensor (ch_axis is None)", " expected, got ", scale.numel(),
      " and ", zero_point.numel());
}

template <typename Rounding, bool kMasked, typename Number>
void run(const Tensor& x, Tensor& result, bool* inside, const Grid<Number>& grid, Axis axis) {
  const auto layout = channelLayout(x, axis);
  const Number* from = x.const_data_ptr<Number>();
  Number* to = result.mutable_data_ptr<Number>();
  const auto mask_at = [inside](int64_t begin) { return kMasked ? inside + begin : nullptr; };
  overChannels(
      layout,
      [&](int64_t begin, int64_t count, int64_t channel) {
        fakeQuantizeRow<Rounding, kMasked>(
            from + begin, to + begin, mask_at(begin), count,
            {grid.scales[channel], grid.offsets[channel], axis.has_value()}, grid.low, grid.high);
      },
      [&](int64_t begin) {
        fakeQuantizeAcross<Rounding, kMasked>(
            from + begin, to + begin, mask_at(begin), layout.channels, grid.scales.data(),
            grid.inverse_scales.data(), grid.offsets.data(), grid.low, grid.high);
      });
}

// The result, and the mask if kMasked.
template <bool kMasked>
std::tuple<Tensor, Tensor> computeOnCpu(
    const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t quant_min, int64_t quant_max,
    Axis ch_axis, string_view rounding) {
  const auto axis = wrapAxis(ch_axis, x);
  checkArguments(x, scale, zero_point, quant_min, quant_max, axis);
  const auto values = denseOf(x).to(computedIn(x));
  const auto like = values.options();
  auto result = at::empty_strided(values.sizes(), values.strides(), like);
  Tensor mask;
  bool* inside = nullptr;
  if constexpr (kMasked) {
    mask = at::empty_strided(values.sizes(), values.strides(), like.dtype(at::kBool));
    inside = mask.mutable_data_ptr<bool>();
  }
  const auto compute = [&](auto kind, auto number) {
    const Grid<decltype(number)> grid(scale, zero_point, quant_min, quant_max);
    run<decltype(kind), kMasked>(values, result, inside, grid, axis);
  };
  dispatchRounding(
      rounding, [&](auto kind) { dispatchPrecision(values, [&](auto number) { compute(kind, number); }); });
  return {result.to(x.scalar_type()), mask};
}

std::tuple<Tensor, Tensor> byOperators(
    const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t quant_min, int64_t quant_max,
    Axis ch_axis, string_view rounding) {
  const auto axis = wrapAxis(ch_axis, x);
  checkArguments(x, scale, zero_point, quant_min, quant_max, axis);
  const auto dtype = computedIn(x);
  const auto step = alongAxis(scale.to(dtype), x, axis), zero = alongAxis(zero_point.to(dtype), x, axis);
  const auto code = dispatchRounding(
      rounding, [&](auto kind) { return codeOf<decltype(kind)>(x.to(dtype), step, zero, axis.has_value()); });
  const auto result = (at::clamp(code, quant_min, quant_max) - zero) * step;
  return {result.to(x.scalar_type()), at::logical_and(at::ge(code, quant_min), at::le(code, quant_max))};
}

template <auto compute>
Tensor resultOf(
    const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t quant_min, int64_t quant_max,
    Axis ch_axis, string_view rounding) {
  return std::get<0>(compute(x, scale, zero_point, quant_min, quant_max, ch_axis, rounding));
}

// Sizes may be symbols here, which cannot be compared.
std::tuple<Tensor, Tensor> fakeQuantizeWithMaskMeta(
    const Tensor& x, const Tensor&, const Tensor&, int64_t, int64_t, Axis, string_view) {
  return {at::empty_like(x), at::empty_like(x, x.options().dtype(at::kBool))};
}

Tensor maskGradientByOperators(const Tensor& gradient, const Tensor& inside) {
  return at::where(inside, gradient, 0);
}

Tensor maskGradientCpu(const Tensor& gradient, const Tensor& inside) {
  const bool side_by_side = gradient.scalar_type() == at::kFloat && gradient.strides() == inside.strides() &&
                            gradient.sizes() == inside.sizes() && gradient.is_non_overlapping_and_dense();
  if (!side_by_side) {
    return maskGradientByOperators(gradient, inside);
  }
  auto result = at::empty_strided(gradient.sizes(), gradient.strides(), gradient.options());
  const float* from = gradient.const_data_ptr<float>();
  const bool* mask = inside.const_data_ptr<bool>();
  float* to = result.mutable_data_ptr<float>();
  at::parallel_for(0, result.numel(), kGrain, [&](int64_t begin, int64_t end) {
    maskRow(from + begin, mask + begin, to + begin, end - begin);
  });
  return result;
}

Tensor callMaskGradient(const Tensor& gradient, const Tensor& inside) {
  static const auto op = findOperator<decltype(maskGradientCpu)>("jit_passes::mask_gradient");
  return op.call(gradient, inside);
}

class FakeQuantize : public torch::autograd::Function<FakeQuantize> {
 public:
  static Tensor forward(
      torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& scale,
      const Tensor& zero_point, int64_t quant_min, int64_t quant_max, Axis ch_axis, string_view rounding) {
    static const auto op = findOperator<decltype(byOperators)>("jit_passes::fake_quantize_with_mask");
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [result, inside] = op.call(x, scale, zero_point, quant_min, quant_max, ch_axis, rounding);
    context->save_for_backward({inside});
    return result;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    torch::autograd::variable_list result(7);
    result[0] = callMaskGradient(gradients[0], context->get_saved_variables()[0]);
    return result;
  }
};

Tensor fakeQuantizeAutograd(
    const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t quant_min, int64_t quant_max,
    Axis ch_axis, string_view rounding) {
  if (at::GradMode::is_enabled() && x.requires_grad()) {
    return FakeQuantize::apply(x, scale, zero_point, quant_min, quant_max, ch_axis, rounding);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return callFakeQuantize(x, scale, zero_point, quant_min, quant_max, ch_axis, rounding);
}

Tensor maskGradientAutograd(const Tensor& gradient, const Tensor& inside) {
  if (at::GradMode::is_enabled() && gradient.requires_grad()) {
    return maskGradientByOperators(gradient, inside); // for a second derivative
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return callMaskGradient(gradient, inside);
}

Tensor trainFixed(
    const Tensor& x, double scale, int64_t zero_point, bool enabled, int64_t quant_min, int64_t quant_max,
    string_view rounding, string_view name, string_view) {
  TORCH_CHECK(
      scale > 0 && std::isfinite(scale), "the scale of '", name, "' must be finite and above 0, got ", scale);
  if (!enabled) {
    return x.clone();
  }
  const auto constant = [&](double value, at::ScalarType dtype) {
    return at::full({1}, value, x.options().dtype(dtype).requires_grad(false));
  };
  return callFakeQuantize(
      x, constant(scale, computedIn(x)), constant(static_cast<double>(zero_point), at::kLong), quant_min,
      quant_max, std::nullopt, rounding);
}

const RegisterOp fake_quantize_op{
    "fake_quantize(Tensor x, Tensor scale, Tensor zero_point, int quant_min, int quant_max, "
    "int? ch_axis=None, str rounding=\"half_even\") -> Tensor",
    "Quantize and dequantize in one step, with a straight-through gradient.",
    onCpu(resultOf<computeOnCpu<false>>),
    onAnyDevice(resultOf<byOperators>),
    onMeta(likeOperands()),
    withGradient(fakeQuantizeAutograd)};
const RegisterOp fake_quantize_with_mask_op{
    "fake_quantize_with_mask(Tensor x, Tensor scale, Tensor zero_point, int quant_min, int quant_max, "
    "int? ch_axis=None, str rounding=\"half_even\") -> (Tensor, Tensor)",
    "Fake-quantize without a gradient; also return where the gradient passes.", onCpu(computeOnCpu<true>),
    onAnyDevice(byOperators), onMeta(fakeQuantizeWithMaskMeta)};
const RegisterOp mask_gradient_op{
    "mask_gradient(Tensor gradient, Tensor inside) -> Tensor",
    "Pass the gradient where the mask is set, 0 elsewhere.",
    onCpu(maskGradientCpu),
    onAnyDevice(maskGradientByOperators),
    onMeta(maskGradientByOperators),
    withGradient(maskGradientAutograd)};

const RegisterOp train_fixed_op{
    "train_fixed(Tensor x, float scale, int zero_point, bool enabled, int quant_min, int quant_max, "
    "str rounding, str name, str spec) -> Tensor",
    "Fake-quantize with a scale and a zero point that are known.", composed(trainFixed)};

} // namespace

Tensor callFakeQuantize(
    const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t quant_min, int64_t quant_max,
    Axis ch_axis, string_view rounding) {
  static const auto op = findOperator<decltype(callFakeQuantize)>("jit_passes::fake_quantize");
  return op.call(x, scale, zero_point, quant_min, quant_max, ch_axis, rounding);
}

} // namespace jit_passes
