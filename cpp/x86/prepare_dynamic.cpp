// Phases of dynamic linear layers, and functions of float32.
#include "dynamic.h"
#include "placed.h"

namespace jit_passes::x86 {

FloatFunction functionOf(const Operator& op) {
  const at::Tensor& numbers = op.tensors[0];
  const auto number = [&](int64_t i) {
    return numbers.numel() > i ? static_cast<float>(numbers.const_data_ptr<double>()[i]) : 0;
  };
  return {static_cast<FloatFunction::Which>(op.attributes[0]), number(0), number(1)};
}

Part measured(const Memory& from, const Memory& to) {
  const Placed x = rowsOf(from);
  return {Measure().items(x.image), [=, offset = to.offset](const Call& call, int64_t begin, int64_t end) {
            Measure().run(x.in(call), reinterpret_cast<Extent*>(call.arena() + offset), begin, end);
          }};
}

Part quantizedRows(const Operator& op, const Step& step, const std::vector<Memory>& memory) {
  const Placed x = rowsOf(memory[step.inputs[0]]);
  const int64_t grids = memory[step.output].offset;
  const int64_t codes = grids + bytesOfGrids(op, x.image.rows() * x.image.width);
  const int64_t extents = step.inputs.size() > 1 ? memory[step.inputs[1]].offset : 0;
  const QuantizeRows kernel{
      op.attributes[DynamicAttributes::PerRow] != 0,
      static_cast<RangeForm>(op.attributes[DynamicAttributes::Form])};
  return {kernel.items(x.image), [=](const Call& call, int64_t begin, int64_t end) {
            kernel.run(
                x.in(call), reinterpret_cast<const Extent*>(call.arena() + extents),
                reinterpret_cast<RowGrid*>(call.arena() + grids), call.arena() + codes, begin, end);
          }};
}

Part multipliedRows(const Operator& op, const Step& step, const std::vector<Memory>& memory) {
  const Placed y = rowsOf(memory[step.output]);
  const int64_t rows = y.image.rows() * y.image.width, grids = memory[step.inputs[0]].offset;
  const int64_t codes = grids + bytesOfGrids(op, rows);
  const Packed& weights = *step.packed;
  const RowsToFloats how{
      weights.multiplier.data(),
      weights.offset.data(),
      weights.sums.data(),
      nullptr,
      op.attributes[DynamicAttributes::PerRow] != 0,
      step.function};
  const auto residual = step.inputs.size() > 1 ? std::optional(rowsOf(memory[step.inputs[1]])) : std::nullopt;
  return {
      weights.kernel().floatItems(rows),
      [=, packed = step.packed](const Call& call, int64_t begin, int64_t end) {
        const Image other = residual ? residual->in(call) : Image{};
        RowsToFloats own = how;
        own.grids = reinterpret_cast<const RowGrid*>(call.arena() + grids);
        own.residual = residual ? &other : nullptr;
        packed->kernel().runFloats(call.arena() + codes, y.in(call), own, begin, end);
      }};
}

} // namespace jit_passes::x86
