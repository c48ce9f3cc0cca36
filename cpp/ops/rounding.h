// How fake quantization rounds, by name: numbers of both precisions, and tensors.
#pragma once

#include "grid.h"

namespace jit_passes {

struct HalfEven {
  template <typename Number>
  static Number round(Number v) {
    return nearestEven(v);
  }
  static at::Tensor round(const at::Tensor& v) { return at::round(v); }
};

struct HalfAway {
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
  template <typename Number>
  static Number round(Number v) {
    return floorOf(v);
  }
  static at::Tensor round(const at::Tensor& v) { return at::floor(v); }
};

struct Ceil {
  template <typename Number>
  static Number round(Number v) {
    return ceilOf(v);
  }
  static at::Tensor round(const at::Tensor& v) { return at::ceil(v); }
};

struct TowardZero {
  template <typename Number>
  static Number round(Number v) {
    return truncOf(v);
  }
  static at::Tensor round(const at::Tensor& v) { return at::trunc(v); }
};

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
