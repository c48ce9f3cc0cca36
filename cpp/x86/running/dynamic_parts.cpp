// Parts of layers that give float32, mostly dynamic layers, and functions of float32.
#include "placed.h"
#include "x86/kernels/dynamic.h"
#include "x86/lowering/transposed.h"

namespace jit_passes::x86 {

Part measured(const Memory& from, const Memory& to) {
  const Placed x = rowsOf(from);
  return {Measure().items(x.image), [=, offset = to.offset](const Call& call, int64_t begin, int64_t end) {
            Measure().run(x.in(call), reinterpret_cast<Extent*>(call.arena() + offset), begin, end);
          }};
}

Part quantizedRows(const Operator& op, const Step& step, const std::vector<Memory>& memory) {
  const Placed x = rowsOf(memory[step.inputs[0]]);
  const int64_t to = memory[step.output].offset, rows = x.image.rows() * x.image.width;
  const auto form = static_cast<RangeForm>(dynamicAttribute(op, DynamicAttributes::Form));
  const QuantizeRows kernel{form, kPyTorchRoundsSteps};
  if (dynamicAttribute(op, DynamicAttributes::PerRow)) {
    return {rows, [=, codes = to + bytesOfGrids(rows)](const Call& call, int64_t begin, int64_t end) {
              auto* grids = reinterpret_cast<RowGrid*>(call.arena() + to);
              kernel.run(x.in(call), grids, call.arena() + codes, begin, end);
            }};
  }
  const DynamicGrid grid{memory[step.inputs[1]].offset, form};
  return {rows, [=](const Call& call, int64_t begin, int64_t end) {
            kernel.run(x.in(call), grid.extents(call), grid.infinite(call), call.arena() + to, begin, end);
          }};
}

std::vector<RowGrid> DynamicGrid::ofPixels(
    const Call& call, const RowGrid& grid, int64_t samples, int64_t lines, int64_t pixels) const {
  std::vector<RowGrid> grids(pixels, grid);
  for (int64_t line = 0; line < lines; ++line) {
    if (infinite(call)[line]) {
      const int64_t sample = line / (lines / samples), some = pixels / samples;
      std::fill_n(grids.begin() + sample * some, some, withoutNumbers(grid));
    }
  }
  return grids;
}

namespace {

// Dense codes of all pixels of an image.
Image codesFor(const Image& image, int64_t channels) {
  Image codes = image;
  codes.channels = codes.pixel = channels;
  codes.row = codes.width * codes.pixel, codes.plane = codes.height * codes.row;
  codes.image = codes.depth * codes.plane;
  return codes;
}

} // namespace

std::vector<Part> toFloats(const Operator& op, const Step& step, const std::vector<Memory>& memory) {
  const bool linear = isLinear(op.kind), dynamic = isDynamic(op.kind);
  const bool per_row = dynamic && dynamicAttribute(op, DynamicAttributes::PerRow);
  const auto view = [&](size_t id) { return linear ? rowsOf(memory[id]) : image(memory[id]); };
  const Memory& codes = memory[step.inputs[0]];
  const Placed y = view(step.output);
  const int64_t first = per_row ? bytesOfGrids(y.image.rows() * y.image.width) : 0;
  const Placed x = linear && dynamic
                       ? Placed{codesFor(y.image, op.tensors[kWeight].size(1)), codes.offset + first}
                       : view(step.inputs[0]);
  const auto addend = addendOf(step, op);
  const auto residual = addend ? std::optional(view(*addend)) : std::nullopt;
  DynamicGrid grid{};
  std::optional<RowGrid> known;
  if (!dynamic) { // the multipliers contain the scale
    known = RowGrid{1, static_cast<int32_t>(codes.grid->zero_point)};
  } else {
    grid.offset = per_row ? 0 : memory[step.inputs[1]].offset;
    grid.form = static_cast<RangeForm>(dynamicAttribute(op, DynamicAttributes::Form));
  }
  const Grid& result = *memory[step.output].grid;
  const auto to_codes = result.is_float ? std::nullopt : std::optional(toCodes(result));
  const Packed& weights = *step.packed;
  const int64_t outputs = op.tensors[kWeight].size(0);
  const auto part = [&](size_t number, const Placed& to, const std::optional<Placed>& added) -> Part {
    const SumsToFloats how{
        weights.multiplier.data(),
        weights.offset.data(),
        weights.sums.data() + number * outputs,
        nullptr,
        per_row,
        step.function};
    const int64_t pixels = to.image.rows() * to.image.width, samples = linear ? pixels : to.image.images;
    const int64_t lines = linear ? pixels : linesOf(pixelDims(codes.sizes, codes.axis));
    return {
        weights.kernel(number).items(x.image, to.image, added ? &added->image : nullptr),
        [=, packed = step.packed,
         grids = GridsOfCodes{per_row, codes.offset, grid, samples, lines, pixels, known}](
            const Call& call, int64_t begin, int64_t end) {
          const Image other = added ? added->in(call) : Image{};
          SumsToFloats own = how;
          own.residual = added ? &other : nullptr;
          own.codes = to_codes ? &*to_codes : nullptr;
          grids.with(call, [&](const RowGrid* of, bool each) {
            own.grids = of, own.per_row = each;
            packed->kernel(number).run(x.in(call), to.in(call), own, begin, end);
          });
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
