// Parts of the operators that train a grid. The operators are composed of one that writes to the state and has no
// gradient, and of others with a gradient that write nothing.
#pragma once

#include "graph/callers_error.h"
#include "grid.h"

namespace jit_passes {

// Calls the operator that writes, without recording gradients. Ahead-of-time tracing hides this write from autograd,
// but would turn a write to a detached tensor into an operation on the parameter.
template <typename Operator, typename... Operands>
auto callWithoutGradient(const Operator& op, const Operands&... operands) {
  const at::NoGradGuard guard;
  return op.call(operands...);
}

// The scale with which fake quantization of x gives fq(x * fold) / fold, for one scale or one for each channel.
inline at::Tensor foldScale(const at::Tensor& scale, const at::Tensor& fold) {
  return scale.reshape({-1}) / fold.reshape({-1});
}

// The axis of the fold, counted from the front, after checks of both. Whether the fold is finite is checked on the
// CPU only: elsewhere the check would wait for the device.
inline int64_t checkedFoldAxis(
    const at::Tensor& x, const at::Tensor& fold, int64_t fold_axis, Axis axis, c10::string_view name) {
  const auto found = *wrapAxis(fold_axis, x);
  TORCH_CHECK(
      fold.numel() == x.size(found) && (!axis || *axis == found), "a fold of ", fold.numel(),
      " numbers along axis ", found, " does not go with shape ", x.sizes(),
      axis ? " and its ch_axis: both must be the axis of the output channels"
           : ": it has one for each output channel");
  if (fold.is_cpu()) {
    for (const double factor : Grid<double>::read(fold)) {
      checkCaller(
          std::isfinite(factor), "the batch norm behind '", name, "' multiplies a channel by ", factor,
          ": training has diverged; lower the learning rate, and resume from a checkpoint");
    }
  }
  return found;
}

// LSQ's 1 / sqrt(N * quant_max), with N elements that share a scale, or only a sample's elements if `per_sample`.
inline double gradientScale(const at::Tensor& x, int64_t quant_max, Axis ch_axis, bool per_sample) {
  TORCH_CHECK(quant_max > 0, "quant_max must be above 0, got ", quant_max);
  auto count = x.sym_numel();
  if (ch_axis) {
    count = count / x.sym_size(*ch_axis);
  }
  if (per_sample && x.dim() > 0) {
    count = count / x.sym_size(0);
  }
  return 1 / std::sqrt(static_cast<double>(count.guard_int(__FILE__, __LINE__) * quant_max));
}

// The result for an empty x, with gradients of 0 for the parameters.
inline at::Tensor ofNothing(
    const at::Tensor& x, const at::Tensor& parameter, const std::optional<at::Tensor>& fold) {
  const auto result = x + parameter.sum();
  return fold ? result + fold->sum() : result;
}

// Whether the parameter is not initialized, that is, all infinite. Waits for the device.
bool isUnset(const at::Tensor& parameter);

// Writes without a record in autograd.
void assign(const at::Tensor& parameter, const std::vector<double>& values);

void checkSet(const at::Tensor& parameter, c10::string_view name);

// Corrects and counts scales that an optimizer's step has made 0 or negative. On the CPU this warns, and a scale
// that is not finite is an error; on other devices both would wait for the device.
template <bool kCpu>
void guardScale(const at::Tensor& scale, const at::Tensor& corrections, c10::string_view name);

// The least first value of a trained scale: float32's epsilon.
constexpr double kSmallestScale = 0x1p-23;

} // namespace jit_passes
