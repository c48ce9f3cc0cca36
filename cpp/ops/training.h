// Parts of the operators that train a grid. These are compositions, of one that has no gradient and writes
// to the state, and of others that have one and write to nothing.
#pragma once

#include "graph/callers_error.h"
#include "grid.h"

namespace jit_passes {

// Calls the one that writes. Ahead-of-time tracing hides from autograd what is written without a gradient, as
// the operators do themselves; what is written to a detached tensor it makes an operation on the parameter.
template <typename Operator, typename... Operands>
auto callWithoutGradient(const Operator& op, const Operands&... operands) {
  const at::NoGradGuard guard;
  return op.call(operands...);
}

// fq(x * fold) / fold with one scale, or with one for each channel, is x fake-quantized with this.
inline at::Tensor foldScale(const at::Tensor& scale, const at::Tensor& fold) {
  return scale.reshape({-1}) / fold.reshape({-1});
}

// The axis of the fold, from the front, after a look at both. Other devices than the CPU would have to be
// waited for to know whether it is finite.
inline int64_t checkedFoldAxis(
    const at::Tensor& x, const at::Tensor& fold, int64_t fold_axis, Axis axis, c10::string_view name) {
  const auto found = *wrapAxis(fold_axis, x);
  TORCH_CHECK(
      fold.numel() == x.size(found) && (!axis || *axis == found), "a fold of ", fold.numel(),
      " numbers along axis ", found, " does not go with shape ", x.sizes(),
      axis ? " and its ch_axis: both must be that of the output channels"
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

// LSQ's 1 / sqrt(N * quant_max) for a grid, with N numbers to a scale; of one sample, if so.
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

// For an empty x: nothing, with gradients of 0 for what would have made it.
inline at::Tensor ofNothing(
    const at::Tensor& x, const at::Tensor& parameter, const std::optional<at::Tensor>& fold) {
  const auto result = x + parameter.sum();
  return fold ? result + fold->sum() : result;
}

// Not initialised: all infinite. Waits for a device.
bool isUnset(const at::Tensor& parameter);

// Writes without a word to autograd.
void assign(const at::Tensor& parameter, const std::vector<double>& values);

void checkSet(const at::Tensor& parameter, c10::string_view name);

// A scale at the end of an optimizer's step: one that is not above 0 is corrected and counted. On the CPU
// there is a warning, and one that is not finite is an error; other devices would have to be waited for.
template <bool kCpu>
void guardScale(const at::Tensor& scale, const at::Tensor& corrections, c10::string_view name);

// Where scales that are trained begin at least: float32's epsilon.
constexpr double kSmallestScale = 0x1p-23;

} // namespace jit_passes
