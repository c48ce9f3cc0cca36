#include "steps.h"

namespace jit_passes::x86 {

FloatFunction functionOf(const Operator& op) {
  const at::Tensor& numbers = op.tensors[0];
  const auto number = [&](int64_t i) {
    return numbers.numel() > i ? static_cast<float>(numbers.const_data_ptr<double>()[i]) : 0;
  };
  return {static_cast<FloatFunction::Which>(op.attributes[0]), number(0), number(1)};
}

std::optional<size_t> addendOf(const Step& step, const Operator& op) {
  const bool has_extents = isDynamic(op.kind) && !dynamicAttribute(op, DynamicAttributes::PerRow);
  const size_t own = has_extents ? 2 : 1;
  return step.inputs.size() > own ? std::optional(step.inputs[own]) : std::nullopt;
}

} // namespace jit_passes::x86
