// jit_passes::quantize and jit_passes::dequantize: float <-> plain integers.
//
//   q = clamp(round(x / scale) + zero_point, quant_min, quant_max)     round: half to even
//   x = (q - zero_point) * scale
//
// Per tensor the parameters are numbers; per channel they are tensors of shape [x.size(axis)]. A negative axis
// counts from the end. In groups they have shape [x.size(axis), groups]: neighbours along the input axis, which is
// the other one of the first two axes, share a scale. The integers equal PyTorch's quantize_per_tensor and
// quantize_per_channel, ties included; torch 2.13 rounds the sum: see CodeOf. For int32 both round the product of x
// and 1 / scale.
#include <algorithm>
#include <limits>

#include "rounding.h"
#include "vectorize.h"

namespace jit_passes {
namespace {

template <typename Int>
JIT_PASSES_VECTORIZED void quantizeRow(
    const float* x, Int* q, int64_t count, CodeOf<HalfEven, float> code_of, int64_t quant_min,
    int64_t quant_max) {
  // float32 cannot represent the ends of int32.
  using Number = std::conditional_t<std::is_same_v<Int, int32_t>, double, float>;
  const Number low = quant_min, high = quant_max;
  for (int64_t i = 0; i < count; ++i) {
    q[i] = static_cast<Int>(clampTo<Number>(code_of(x[i]), low, high));
  }
}

template <typename Int>
JIT_PASSES_VECTORIZED void dequantizeRow(
    const Int* q, float* x, int64_t count, float scale, int32_t zero_point) {
  for (int64_t i = 0; i < count; ++i) {
    x[i] = static_cast<float>(static_cast<int32_t>(q[i]) - zero_point) * scale;
  }
}

void checkQuantize(
    const at::Tensor& x, double scale, int64_t quant_min, int64_t quant_max, at::ScalarType dtype) {
  checkRange(dtype, quant_min, quant_max);
  TORCH_CHECK(scale > 0 && std::isfinite(scale), "scale must be finite and above 0, got ", scale);
  TORCH_CHECK(x.is_floating_point(), "only floating-point tensors are quantized, got ", x.scalar_type());
}

at::Tensor quantize(
    const at::Tensor& x, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max,
    at::ScalarType dtype) {
  checkQuantize(x, scale, quant_min, quant_max, dtype);
  const auto values = x.is_non_overlapping_and_dense() ? x.to(at::kFloat) : x.to(at::kFloat).contiguous();
  auto codes = at::empty_strided(values.sizes(), values.strides(), values.options().dtype(dtype));
  dispatchCodes(dtype, [&](auto zero) {
    using Int = decltype(zero);
    const float* from = values.const_data_ptr<float>();
    Int* to = codes.mutable_data_ptr<Int>();
    at::parallel_for(0, values.numel(), kGrain, [&](int64_t begin, int64_t end) {
      quantizeRow<Int>(
          from + begin, to + begin, end - begin,
          {static_cast<float>(scale), static_cast<float>(zero_point), std::is_same_v<Int, int32_t>},
          quant_min, quant_max);
    });
  });
  return codes;
}

// Clamps codes in float32, or in double for int32, whose ends float32 cannot represent.
at::Tensor clampedCodes(const at::Tensor& codes, int64_t quant_min, int64_t quant_max, at::ScalarType dtype) {
  const auto wide = dtype == at::kInt ? codes.to(at::kDouble) : codes;
  return at::clamp(wide, quant_min, quant_max).to(dtype);
}

at::Tensor quantizeByOperators(
    const at::Tensor& x, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max,
    at::ScalarType dtype) {
  checkQuantize(x, scale, quant_min, quant_max, dtype);
  const auto number = [&](double value) { return at::full({}, value, x.options().dtype(at::kFloat)); };
  const auto codes = codeOf<HalfEven>(
      x.to(at::kFloat), number(scale), number(static_cast<double>(zero_point)), dtype == at::kInt);
  return clampedCodes(codes, quant_min, quant_max, dtype);
}

at::Tensor dequantizeByOperators(const at::Tensor& q, double scale, int64_t zero_point) {
  return (q.to(at::kInt) - zero_point).to(at::kFloat) * static_cast<float>(scale);
}

at::Tensor dequantize(const at::Tensor& q, double scale, int64_t zero_point) {
  const auto codes = q.is_non_overlapping_and_dense() ? q : q.contiguous();
  auto values = at::empty_strided(codes.sizes(), codes.strides(), codes.options().dtype(at::kFloat));
  dispatchCodes(q.scalar_type(), [&](auto zero) {
    using Int = decltype(zero);
    const Int* from = codes.const_data_ptr<Int>();
    float* to = values.mutable_data_ptr<float>();
    at::parallel_for(0, codes.numel(), kGrain, [&](int64_t begin, int64_t end) {
      dequantizeRow<Int>(from + begin, to + begin, end - begin, static_cast<float>(scale), zero_point);
    });
  });
  return values;
}

void checkChannels(
    const at::Tensor& x, const at::Tensor& scales, const at::Tensor& zero_points, int64_t axis) {
  TORCH_CHECK(
      axis >= 0 && axis < x.dim(), "axis ", axis, " is outside of a tensor with ", x.dim(), " dimensions");
  const bool in_groups = scales.dim() > 1;
  TORCH_CHECK(
      scales.numel() == zero_points.numel() && (in_groups ? scales.size(0) : scales.numel()) == x.size(axis),
      "one scale and zero_point for each of the ", x.size(axis), " channels, got ", scales.numel(), " and ",
      zero_points.numel());
  TORCH_CHECK(
      !in_groups || (scales.dim() == 2 && axis < 2 && x.dim() > 1 && scales.size(1) > 0 &&
                     x.size(1 - axis) % scales.size(1) == 0),
      "scales of shape ", scales.sizes(), " do not cut a tensor of shape ", x.sizes(),
      " into groups of equal size along the axis beside ", axis);
}

// The numbers of channels or groups, in a shape that broadcasts with x.
at::Tensor spread(const at::Tensor& numbers, const at::Tensor& x, int64_t axis) {
  if (numbers.dim() < 2) {
    return alongAxis(numbers, x, axis);
  }
  const auto each = numbers.repeat_interleave(x.size(1 - axis) / numbers.size(1), 1);
  std::vector<int64_t> shape(x.dim(), 1);
  shape[0] = x.size(0);
  shape[1] = x.size(1);
  return each.transpose(0, axis).reshape(shape);
}

void checkQuantizable(
    const at::Tensor& x, const at::Tensor& scales, const at::Tensor& zero_points, int64_t axis,
    int64_t quant_min, int64_t quant_max, at::ScalarType dtype) {
  checkRange(dtype, quant_min, quant_max);
  checkChannels(x, scales, zero_points, axis);
  TORCH_CHECK(x.is_floating_point(), "only floating-point tensors are quantized, got ", x.scalar_type());
  const auto steps = scales.to(at::kCPU, at::kFloat).contiguous();
  const c10::ArrayRef<float> numbers(steps.const_data_ptr<float>(), steps.numel());
  const auto is_usable = [](float step) { return step > 0 && step <= std::numeric_limits<float>::max(); };
  TORCH_CHECK(std::ranges::all_of(numbers, is_usable), "scales must be finite and above 0, got ", scales);
}

at::Tensor quantizePerChannelByOperators(
    const at::Tensor& x, const at::Tensor& scales, const at::Tensor& zero_points, int64_t axis,
    int64_t quant_min, int64_t quant_max, at::ScalarType dtype) {
  axis += axis < 0 ? x.dim() : 0;
  checkQuantizable(x, scales, zero_points, axis, quant_min, quant_max, dtype);
  const auto number = [&](const at::Tensor& numbers) {
    return spread(numbers.reshape(scales.sizes()).to(x.device(), at::kFloat), x, axis);
  };
  const auto codes =
      codeOf<HalfEven>(x.to(at::kFloat), number(scales), number(zero_points), /*per_channel=*/true);
  return clampedCodes(codes, quant_min, quant_max, dtype);
}

at::Tensor quantizePerChannel(
    const at::Tensor& x, const at::Tensor& scales, const at::Tensor& zero_points, int64_t axis,
    int64_t quant_min, int64_t quant_max, at::ScalarType dtype) {
  axis += axis < 0 ? x.dim() : 0;
  checkQuantizable(x, scales, zero_points, axis, quant_min, quant_max, dtype);
  const auto steps = scales.to(at::kFloat).contiguous(), shifts = zero_points.to(at::kLong).contiguous();
  const auto rows = x.to(at::kFloat).transpose(0, axis).contiguous();
  auto codes = at::empty(rows.sizes(), rows.options().dtype(dtype));
  const int64_t channels = steps.numel(), count = channels ? rows.numel() / channels : 0;
  dispatchCodes(dtype, [&](auto zero) {
    using Int = decltype(zero);
    const float* from = rows.const_data_ptr<float>();
    Int* to = codes.mutable_data_ptr<Int>();
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(count, 1));
    at::parallel_for(0, channels, grain, [&](int64_t begin, int64_t end) {
      for (int64_t channel = begin; channel < end; ++channel) {
        const int64_t at = channel * count;
        quantizeRow<Int>(
            from + at, to + at, count,
            {steps.const_data_ptr<float>()[channel],
             static_cast<float>(shifts.const_data_ptr<int64_t>()[channel]), /*per_channel=*/true},
            quant_min, quant_max);
      }
    });
  });
  return codes.transpose(0, axis).contiguous();
}

at::Tensor dequantizePerChannelByOperators(
    const at::Tensor& q, const at::Tensor& scales, const at::Tensor& zero_points, int64_t axis) {
  axis += axis < 0 ? q.dim() : 0;
  checkChannels(q, scales, zero_points, axis);
  const auto zeros = zero_points.to(q.device(), at::kInt).reshape(scales.sizes());
  const auto steps = q - spread(zeros, q, axis); // int32, the dtype of the zero points
  return steps.to(at::kFloat).mul_(spread(scales.to(q.device(), at::kFloat), q, axis));
}

at::Tensor dequantizePerChannel(
    const at::Tensor& q, const at::Tensor& scales, const at::Tensor& zero_points, int64_t axis) {
  axis += axis < 0 ? q.dim() : 0;
  checkChannels(q, scales, zero_points, axis);
  const auto steps = scales.to(at::kFloat).contiguous(), shifts = zero_points.to(at::kInt).contiguous();
  const auto rows = q.transpose(0, axis).contiguous();
  auto values = at::empty(rows.sizes(), rows.options().dtype(at::kFloat));
  const int64_t channels = steps.numel(), count = channels ? rows.numel() / channels : 0;
  dispatchCodes(q.scalar_type(), [&](auto zero) {
    using Int = decltype(zero);
    const Int* from = rows.const_data_ptr<Int>();
    float* to = values.mutable_data_ptr<float>();
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(count, 1));
    at::parallel_for(0, channels, grain, [&](int64_t begin, int64_t end) {
      for (int64_t channel = begin; channel < end; ++channel) {
        const int64_t at = channel * count;
        dequantizeRow<Int>(
            from + at, to + at, count, steps.const_data_ptr<float>()[channel],
            shifts.const_data_ptr<int32_t>()[channel]);
      }
    });
  });
  return values.transpose(0, axis).contiguous();
}

const RegisterOp quantize_op{
    "quantize(Tensor x, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype) -> "
    "Tensor",
    "Float to integers, one scale and zero point for the tensor.", onCpu(quantize),
    onAnyDevice(quantizeByOperators)};
const RegisterOp dequantize_op{
    "dequantize(Tensor q, float scale, int zero_point) -> Tensor",
    "Integers to float, one scale and zero point for the tensor.", onCpu(dequantize),
    onAnyDevice(dequantizeByOperators)};
const RegisterOp quantize_per_channel_op{
    "quantize_per_channel(Tensor x, Tensor scales, Tensor zero_points, int axis, int quant_min, "
    "int quant_max, ScalarType dtype) -> Tensor",
    "Float to integers, a scale and zero point for each channel or group.", onCpu(quantizePerChannel),
    onAnyDevice(quantizePerChannelByOperators)};
const RegisterOp dequantize_per_channel_op{
    "dequantize_per_channel(Tensor q, Tensor scales, Tensor zero_points, int axis) -> Tensor",
    "Integers to float, a scale and zero point for each channel or group.", onCpu(dequantizePerChannel),
    onAnyDevice(dequantizePerChannelByOperators)};

} // namespace
} // namespace jit_passes
