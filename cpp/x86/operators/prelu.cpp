// prelu: negative numbers are multiplied by the slope of their channel.
#include "operator.h"

namespace jit_passes::x86 {
namespace {

Planned prelu(const RegionReader& reader, Node* node) {
  const auto slopes = reader.operand(node, "weight");
  refuseUnless(slopes.isTensor() && slopes.toTensor().dim() <= 1, "its slopes are not one for each channel");
  return {
      {Kind("prelu"), "", {}, 0, {}, {slopes.toTensor().detach().to(at::kDouble).flatten().contiguous()}},
      {inputOf(node, "self")}};
}

void checkPrelu(const Operator& op) {
  const int64_t count = op.tensors[0].numel();
  refuseUnless(between(count, 1, kMaxCount), count, " slopes");
  checkNumbers(op.tensors[0], count, "slopes");
}

Sizes sizesOfPrelu(const Operands& operands) {
  const Sizes& of = operands.first();
  const int64_t slopes = operands.op.tensors[0].numel();
  require(
      operands.op, of.size() > 1 && (slopes == 1 || of[1] == slopes), "has ", slopes,
      " slopes, and got the shape ", of);
  return of;
}

Part preluKernel(const StepContext& c) {
  const at::Tensor slopes = c.op.tensors[0].expand({c.out().channels()}).contiguous();
  const Grid &from = *c.in().grid, &to = *c.out().grid;
  // A part that keeps the tensor, since the kernel points to its numbers.
  const auto part = [&](const Part& made, const at::Tensor& held) -> Part {
    return {made.items, [held, run = made.run](const Call& call, int64_t begin, int64_t end) {
              run(call, begin, end);
            }};
  };
  if (to.is_float) {
    const at::Tensor numbers = slopes.to(at::kFloat);
    return part(c.ofRows(PreluFloats{numbers.const_data_ptr<float>()}), numbers);
  }
  const double ratio = static_cast<double>(static_cast<float>(from.scale)) / static_cast<float>(to.scale);
  const at::Tensor below = (slopes * ratio).to(at::kFloat);
  const Prelu kernel{
      below.const_data_ptr<float>(), static_cast<float>(ratio), static_cast<float>(offsetOf(to)),
      static_cast<int32_t>(from.zero_point), codeRangeOf(to)};
  return part(c.unary(kernel), below);
}

// The tensor has the slopes: one, or one for each channel along axis 1.
const RegisterOperator prelu_operator{
    {.name = "prelu",
     .tensors = {1, 1},
     .types = Types::Same,
     .decodes = true,
     .from = {{"prelu", prelu}},
     .check = checkPrelu,
     .infer = sizesOfPrelu,
     .channels = secondAxis,
     .lower = lowerChannels,
     .kernel = preluKernel}};

} // namespace
} // namespace jit_passes::x86
