// Phases of dynamic operators, and functions of float32.
#include "dynamic.h"
#include "placed.h"
#include "transposed.h"

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
      dynamicAttribute(op, DynamicAttributes::PerRow) != 0,
      static_cast<RangeForm>(dynamicAttribute(op, DynamicAttributes::Form)), kPyTorchRoundsSteps};
  return {kernel.items(x.image), [=](const Call& call, int64_t begin, int64_t end) {
            kernel.run(
                x.in(call), reinterpret_cast<const Extent*>(call.arena() + extents),
                reinterpret_cast<RowGrid*>(call.arena() + grids), call.arena() + codes, begin, end);
          }};
}

namespace {

// Dense rows of codes, for each pixel of an image.
Image codesFor(const Image& image, int64_t channels) {
  Image codes = image;
  codes.channels = codes.pixel = channels;
  codes.row = codes.width * codes.pixel, codes.plane = codes.height * codes.row;
  codes.image = codes.depth * codes.plane;
  return codes;
}

} // namespace

std::optional<size_t> addendOf(const Step& step, const Operator& op) {
  const size_t own = isLinear(op.kind) ? 1 : 2;
  return step.inputs.size() > own ? std::optional(step.inputs[own]) : std::nullopt;
}

std::vector<Part> toFloats(const Operator& op, const Step& step, const std::vector<Memory>& memory) {
  const bool linear = isLinear(op.kind);
  const auto view = [&](size_t id) { return linear ? rowsOf(memory[id]) : image(memory[id]); };
  const Memory& codes = memory[step.inputs[0]];
  const Placed y = view(step.output);
  const int64_t first = linear ? bytesOfGrids(op, y.image.rows() * y.image.width) : 0;
  const Placed x = linear ? Placed{codesFor(y.image, op.tensors[kWeight].size(1)), codes.offset + first}
                          : view(step.inputs[0]);
  const auto addend = addendOf(step, op);
  const auto residual = addend ? std::optional(view(*addend)) : std::nullopt;
  const DynamicGrid grid{
      linear ? 0 : memory[step.inputs[1]].offset,
      static_cast<RangeForm>(dynamicAttribute(op, DynamicAttributes::Form))};
  const Packed& weights = *step.packed;
  const int64_t outputs = op.tensors[kWeight].size(0);
  const auto part = [&](size_t number, const Placed& to, const std::optional<Placed>& added) -> Part {
    const SumsToFloats how{
        weights.multiplier.data(),
        weights.offset.data(),
        weights.sums.data() + number * outputs,
        nullptr,
        dynamicAttribute(op, DynamicAttributes::PerRow) != 0,
        step.function};
    return {
        weights.kernel(number).items(x.image, to.image, added ? &added->image : nullptr),
        [=, grids = codes.offset, packed = step.packed](const Call& call, int64_t begin, int64_t end) {
          const Image other = added ? added->in(call) : Image{};
          const RowGrid one = linear ? RowGrid{} : grid.in(call);
          SumsToFloats own = how;
          own.grids = linear ? reinterpret_cast<const RowGrid*>(call.arena() + grids) : &one;
          own.residual = added ? &other : nullptr;
          packed->kernel(number).run(x.in(call), to.in(call), own, begin, end);
        }};
  };
  if (!isTransposed(op.kind)) {
    return {part(0, y, residual)};
  }
  std::vector<Part> parts;
  const auto residues = residuesOf(op);
  for (size_t i = 0; i < residues.size(); ++i) {
    const Placed to = resultsOf(residues[i], y);
    if (to.image.rows() * to.image.width > 0) {
      parts.push_back(
          part(i, to, residual ? std::optional(resultsOf(residues[i], *residual)) : std::nullopt));
    }
  }
  return parts;
}

} // namespace jit_passes::x86
