#include "training.h"

namespace jit_passes {

using at::Tensor;
using c10::string_view;

bool isUnset(const Tensor& parameter) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (parameter.is_cpu()) { // saves three operators
    const auto numbers = Grid<double>::read(parameter);
    return std::ranges::all_of(numbers, [](double number) { return number == infinity; });
  }
  return at::eq(parameter.detach(), infinity).all().item<bool>();
}

void assign(const Tensor& parameter, const std::vector<double>& values) {
  at::AutoDispatchBelowADInplaceOrView guard; // also keeps the version counter, which backward compares
  parameter.copy_(at::tensor(values, at::kDouble).reshape(parameter.sizes()));
}

void checkSet(const Tensor& parameter, string_view name) {
  checkCaller(!isUnset(parameter), "'", name, "' has no scale yet: run a batch in training mode first");
}

template <>
void guardScale<true>(const Tensor& scale, const Tensor& corrections, string_view name) {
  auto numbers = Grid<double>::read(scale);
  int64_t corrected = 0;
  for (double& number : numbers) {
    if (!std::isfinite(number)) {
      checkSet(scale, name);
      checkCaller(
          false, "the trained scale of '", name, "' is ", number,
          ": lower the learning rate of the quantization parameters, and resume from a checkpoint");
    }
    if (number <= 0) {
      number = std::max(-number, kSmallestScale);
      ++corrected;
    }
  }
  if (corrected > 0) {
    TORCH_WARN(
        "a step of the optimizer took ", corrected, " of ", numbers.size(), " scales of '", name,
        "' to 0 or below, and they were made positive again: lower the learning rate of the quantization "
        "parameters");
    assign(scale, numbers);
    corrections.add_(corrected);
  }
}

template <>
void guardScale<false>(const Tensor& scale, const Tensor& corrections, string_view) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const auto wrong = at::le(scale, 0);
  scale.copy_(at::where(wrong, scale.abs().clamp_min(kSmallestScale), scale));
  corrections.add_(wrong.sum());
}

} // namespace jit_passes
