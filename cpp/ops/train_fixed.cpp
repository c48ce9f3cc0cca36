// jit_passes::train_fixed: fake_quantize with a scale and a zero point that are known, as those of a
// sigmoid's result; halves to even.
#include "fake_quantize.h"
#include "grid.h"

namespace jit_passes {
namespace {

using at::Tensor;
using c10::string_view;

Tensor trainFixed(
    const Tensor& x, double scale, int64_t zero_point, bool enabled, int64_t quant_min, int64_t quant_max,
    string_view name, string_view) {
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
      quant_max, std::nullopt, "half_even");
}

const RegisterOp train_fixed_op{
    "train_fixed(Tensor x, float scale, int zero_point, bool enabled, int quant_min, int quant_max, "
    "str name, str spec) -> Tensor",
    "Fake-quantize with a scale and a zero point that are known.", composed(trainFixed)};

} // namespace
} // namespace jit_passes
