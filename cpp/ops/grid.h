// Grids, whose numbers are a whole number of steps apart, and loops of fake quantization over a tensor with one
// grid, or with one for each channel.
#pragma once

#include "channels.h"

namespace jit_passes {

constexpr int64_t kGrain = 1 << 14;
constexpr int64_t kLargestWhole = 1 << 24; // float32 has all whole numbers up to here
constexpr int64_t kLargestCode = kLargestWhole;

// Rounding for both precisions.
inline float nearestEven(float v) { return __builtin_rintf(v); }
inline double nearestEven(double v) { return __builtin_rint(v); }
inline float floorOf(float v) { return __builtin_floorf(v); }
inline double floorOf(double v) { return __builtin_floor(v); }
inline float ceilOf(float v) { return __builtin_ceilf(v); }
inline double ceilOf(double v) { return __builtin_ceil(v); }
inline float truncOf(float v) { return __builtin_truncf(v); }
inline double truncOf(double v) { return __builtin_trunc(v); }
// The largest number below a half, with the sign of v: the sum with a half itself could round a number just below a
// half up to 1.
inline float almostHalf(float v) { return __builtin_copysignf(0x1.fffffep-2f, v); }
inline double almostHalf(double v) { return __builtin_copysign(0x1.fffffffffffffp-2, v); }

// A NaN stays NaN.
template <typename Number>
inline Number clampTo(Number v, Number low, Number high) {
  const Number above = v < low ? low : v;
  return above > high ? high : above;
}

// The inverse, limited to finite numbers: a denormal scale may have an infinite inverse, and 0 times that is NaN.
template <typename Number>
inline Number inverseOf(Number scale) {
  constexpr Number largest = std::numeric_limits<Number>::max();
  return clampTo(1 / scale, -largest, largest);
}
inline at::Tensor inverseOf(const at::Tensor& scale) {
  constexpr double largest = std::numeric_limits<float>::max();
  return at::clamp(at::reciprocal(scale), -largest, largest);
}

// Rounding uses the product twice, which keeps compilers from fusing it with a sum. A fused product is not rounded,
// and ties would depend on the vector unit.
template <typename Number>
inline Number inSteps(Number x, Number scale, Number inverse_scale) {
  if constexpr (std::is_same_v<Number, float>) {
    return x * inverse_scale;
  } else {
    return x / scale;
  }
}

// Adds the second use of a product that would have only one.
template <typename Number>
inline Number rounded(Number product) {
  return product == product ? product : std::numeric_limits<Number>::quiet_NaN();
}

inline at::Tensor inSteps(const at::Tensor& x, const at::Tensor& scale) {
  return x.scalar_type() == at::kDouble ? at::div(x, scale) : at::mul(x, inverseOf(scale));
}

inline at::ScalarType computedIn(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Calls body with a number of this dtype.
template <typename Body>
auto dispatchPrecision(const at::Tensor& values, const Body& body) {
  return values.scalar_type() == at::kDouble ? body(double{}) : body(float{});
}

inline void checkGrid(const at::Tensor& x, int64_t quant_min, int64_t quant_max) {
  TORCH_CHECK(
      x.is_floating_point(), "only floating-point tensors are quantized, got ", x.scalar_type(),
      ": call x.float() first");
  TORCH_CHECK(
      quant_min < quant_max && quant_min >= -kLargestCode && quant_max <= kLargestCode, "the range [",
      quant_min, ", ", quant_max, "] is empty, or beyond the integers that float32 holds");
}

// Calls body with a number of the codes' dtype.
template <typename Body>
void dispatchCodes(at::ScalarType dtype, Body body) {
  switch (dtype) {
    case at::kByte: return body(uint8_t{});
    case at::kChar: return body(int8_t{});
    case at::kShort: return body(int16_t{});
    case at::kInt: return body(int32_t{});
    default:
      TORCH_CHECK(
          false, "codes are uint8, int8, int16 or int32, not ", dtype, ": jit_passes::quantize gives these");
  }
}

// Raises an error if codes of this dtype cannot hold the range.
inline void checkRange(at::ScalarType dtype, int64_t quant_min, int64_t quant_max) {
  dispatchCodes(dtype, [&](auto zero) {
    using Limits = std::numeric_limits<decltype(zero)>;
    TORCH_CHECK(
        quant_min < quant_max && quant_min >= Limits::min() && quant_max <= Limits::max(), "the range [",
        quant_min, ", ", quant_max, "] does not fit ", dtype);
  });
}

// A number for each channel, in a shape that broadcasts with x.
inline at::Tensor alongAxis(const at::Tensor& numbers, const at::Tensor& x, Axis axis) {
  std::vector<int64_t> shape(axis ? x.dim() : 0, 1);
  if (axis) {
    shape[*axis] = x.size(*axis);
  }
  return numbers.reshape(shape);
}

// The grids of channels, on the CPU. The offset of a channel is the start of its grid: a zero point in steps, a
// number in units of x, or 0 if the tensor is undefined. A negative scale mirrors the grid, for the weights of a
// convolution whose batch norm changes their sign.
template <typename Number>
struct Grid {
  Grid(const at::Tensor& scale, const at::Tensor& offset, int64_t quant_min, int64_t quant_max)
      : scales(read(scale)),
        offsets(offset.defined() ? read(offset) : std::vector<Number>(scales.size())),
        low(quant_min),
        high(quant_max) {
    for (const Number step : scales) {
      TORCH_CHECK(
          step != 0 && std::isfinite(step), "scale must be finite and not 0, got ", step,
          ": derive it from a range that is finite and not empty");
      inverse_scales.push_back(inverseOf(step));
    }
  }

  static std::vector<Number> read(const at::Tensor& numbers) {
    const auto values = numbers.detach().to(c10::CppTypeToScalarType<Number>::value).contiguous();
    const Number* data = values.template const_data_ptr<Number>();
    return {data, data + values.numel()};
  }

  std::vector<Number> scales, inverse_scales, offsets;
  Number low, high;
};

// Calls in parallel row(begin, count, channel) for contiguous elements of one channel, or across(begin) for one
// element of each channel, if channels are innermost in memory.
template <typename Row, typename Across>
void overChannels(const ChannelLayout& layout, const Row& row, const Across& across) {
  const auto rows = [](int64_t count, int64_t length, const auto& body) {
    at::parallel_for(
        0, count, std::max<int64_t>(1, kGrain / std::max<int64_t>(length, 1)),
        [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            body(i);
          }
        });
  };
  if (layout.channels == 1) {
    at::parallel_for(
        0, layout.inner, kGrain, [&](int64_t begin, int64_t end) { row(begin, end - begin, 0); });
  } else if (layout.inner == 1) {
    rows(layout.outer, layout.channels, [&](int64_t i) { across(i * layout.channels); });
  } else {
    rows(layout.outer * layout.channels, layout.inner, [&](int64_t i) {
      row(i * layout.inner, layout.inner, i % layout.channels);
    });
  }
}

// The operator of this name and signature, for calls through the dispatcher.
template <typename Signature>
auto findOperator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

} // namespace jit_passes
