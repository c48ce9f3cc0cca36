// The roundings of codes and of fake quantization, by name, for numbers of both precisions and for tensors.
#pragma once

#include <torch/headeronly/version.h>

#include "grid.h"

namespace jit_passes {

// Whether PyTorch's quantize_per_tensor and quantize_per_channel round x / scale and then add the zero point, or
// round the sum. With an odd zero point, the code of a half step, and of numbers next to it, depends on this.
constexpr bool kPyTorchRoundsSteps = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14;

// kOfSteps: x / scale is rounded, and then the zero point is added, as in integer arithmetic with a rescaled sum.
// Otherwise the code is rounded, zero point included. The two ways are equal for roundings in one direction. Other
// roundings depend on the sign, which is the sign of x with kOfSteps, and the sign of the code otherwise.
struct HalfEven {
  static constexpr bool kOfSteps = kPyTorchRoundsSteps;
  template <typename Number>
  static Number round(Number v) {
    return nearestEven(v);
  }
  static at::Tensor round(const at::Tensor& v) { return at::round(v); }
};

struct HalfAway {
  static constexpr bool kOfSteps = true;
  template <typename Number>
  static Number round(Number v) {
    return truncOf(v + almostHalf(v));
  }
  static at::Tensor round(const at::Tensor& v) {
    const double half = v.scalar_type() == at::kDouble ? 0x1.fffffffffffffp-2 : 0x1.fffffep-2;
    return at::trunc(v + at::copysign(at::full({}, half, v.options()), v));
  }
};

// floor(v + 0.5), where the sum is exact.
struct HalfUp {
  static constexpr bool kOfSteps = false;
  template <typename Number>
  static Number round(Number v) {
    const Number below = floorOf(v);
    return v - below >= Number(0.5) ? below + 1 : below;
  }
  static at::Tensor round(const at::Tensor& v) {
    const at::Tensor below = at::floor(v);
    return at::where(at::ge(v - below, 0.5), below + 1, below);
  }
};

struct Floor {
  static constexpr bool kOfSteps = false;
  template <typename Number>
  static Number round(Number v) {
    return floorOf(v);
  }
  static at::Tensor round(const at::Tensor& v) { return at::floor(v); }
};

struct Ceil {
  static constexpr bool kOfSteps = false;
  template <typename Number>
  static Number round(Number v) {
    return ceilOf(v);
  }
  static at::Tensor round(const at::Tensor& v) { return at::ceil(v); }
};

struct TowardZero {
  static constexpr bool kOfSteps = true;
  template <typename Number>
  static Number round(Number v) {
    return truncOf(v);
  }
  static at::Tensor round(const at::Tensor& v) { return at::trunc(v); }
};

// The code of a number, not clamped. In float32 with halves to even it is the code of PyTorch's quantize_per_tensor
// and quantize_per_channel, to the bit. Both multiply by 1 / scale.
//
// If the sum is rounded: with one scale for the tensor, a fused multiply-add rounds product and sum to float32 once.
// GCC makes one of the expression, for processors that have the instruction. For other processors PyTorch rounds the
// product too, and so does AVX2 code of an older GCC: codes next to a tie may then differ. With a scale for each
// channel the product is always rounded. A single loop serves both: `first` and `second` are 1 and 1 / scale, or 1 /
// scale and 1.
template <typename Rounding, typename Number>
struct CodeOf {
  CodeOf(Number scale, Number zero_point, bool per_channel)
      : scale(scale),
        zero_point(zero_point),
        first(per_channel ? inverseOf(scale) : 1),
        second(per_channel ? 1 : inverseOf(scale)) {}

  Number operator()(Number x) const {
    if constexpr (Rounding::kOfSteps) {
      return Rounding::round(inSteps(x, scale, first * second)) + zero_point;
    } else if constexpr (std::is_same_v<Number, float>) {
      return Rounding::round(x * first * second + zero_point);
    } else {
      return Rounding::round(x / scale + zero_point);
    }
  }

  Number scale, zero_point, first, second;
};

// With a scale for each channel, if channels are innermost in memory.
template <typename Rounding, typename Number>
Number codeOfChannel(Number x, Number scale, Number inverse_scale, Number zero_point) {
  const Number steps = rounded(inSteps(x, scale, inverse_scale));
  return Rounding::kOfSteps ? Rounding::round(steps) + zero_point : Rounding::round(steps + zero_point);
}

// Products of float32 are exact in double.
template <typename Rounding>
at::Tensor codeOf(
    const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point, bool per_channel) {
  if (Rounding::kOfSteps) {
    return Rounding::round(inSteps(x, scale)) + zero_point;
  }
  if (per_channel || x.scalar_type() == at::kDouble) {
    return Rounding::round(inSteps(x, scale) + zero_point);
  }
  const auto inverse = inverseOf(scale).to(at::kDouble);
  return Rounding::round(at::addcmul(zero_point.to(at::kDouble), x, inverse).to(at::kFloat));
}

template <typename Body>
auto dispatchRounding(c10::string_view name, Body body) {
  if (name == "half_even") {
    return body(HalfEven{});
  }
  if (name == "half_away") {
    return body(HalfAway{});
  }
  if (name == "half_up") {
    return body(HalfUp{});
  }
  if (name == "floor") {
    return body(Floor{});
  }
  if (name == "ceil") {
    return body(Ceil{});
  }
  TORCH_CHECK(
      name == "toward_zero", "rounding is half_even, half_away, half_up, floor, ceil or toward_zero, not '",
      name, "'");
  return body(TowardZero{});
}

} // namespace jit_passes
