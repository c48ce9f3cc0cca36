// Images at their places in memory, and parts that run over them.
#pragma once

#include "execute.h"
#include "x86/kernels/dynamic.h"
#include "x86/lowering/geometry.h"
#include "x86/lowering/steps.h"
#include "x86/lowering/transposed.h"

namespace jit_passes::x86 {

// An image by its offset in the arena, or in a tensor.
struct Placed {
  Image image;
  int64_t offset;
  size_t home = 0; // see Memory::home

  Image in(const Call& call) const {
    Image placed = image;
    placed.data = call.homes[home] + offset;
    return placed;
  }
};

inline Placed image(const Memory& memory, const Dims& dims) {
  return {imageOf(dims, memory.strides, memory.channels(), memory.bytes()), memory.offset, memory.home};
}
// The results of one of a transposed convolution's residues, among all results.
inline Placed resultsOf(const Residues& residues, const Placed& all) {
  return {residues.resultsOf(all.image), all.offset + residues.offsetIn(all.image), all.home};
}

inline Placed image(const Memory& memory) { return image(memory, imageDims(memory.sizes, memory.axis)); }

// A grid that follows from extents in the arena. If these are not finite, flags after them mark the lines of the
// codes that are not finite.
struct DynamicGrid {
  int64_t offset;
  RangeForm form;

  Extent* extents(const Call& call) const { return reinterpret_cast<Extent*>(call.arena() + offset); }
  bool* infinite(const Call& call) const { return reinterpret_cast<bool*>(extents(call) + Measure::kParts); }
  RowGrid in(const Call& call) const { return gridOf(extentOf(extents(call)), form); }
  // A grid for each pixel of the result: `grid`, or NaN for the pixels of a sample with a number that is not finite.
  std::vector<RowGrid> ofPixels(
      const Call& call, const RowGrid& grid, int64_t samples, int64_t lines, int64_t pixels) const;
};

// The grids of codes: one for each row, in the arena in front of the rows; or one from extents; or a known one.
struct GridsOfCodes {
  bool per_row;
  int64_t rows; // the offset of the rows' grids
  DynamicGrid all;
  int64_t samples, lines, pixels;
  std::optional<RowGrid> known = {};

  // Calls `use(grids, whether there is one for each pixel)`.
  template <typename Use>
  void with(const Call& call, const Use& use) const {
    if (known) {
      return use(&*known, false);
    }
    if (per_row) {
      return use(reinterpret_cast<const RowGrid*>(call.arena() + rows), true);
    }
    const Extent extent = extentOf(all.extents(call));
    const RowGrid one = gridOf(extent, all.form);
    if (extent.finite) {
      return use(&one, false);
    }
    use(all.ofPixels(call, one, samples, lines, pixels).data(), true);
  }
};

// Memory as rows of a matrix, with the last axis as channels.
JIT_PASSES_API Placed rowsOf(const Memory& memory);

template <typename Kernel>
Part unary(Kernel kernel, const Placed& in, const Placed& out) {
  const int64_t items = kernel.items(out.image);
  return {items, [kernel = std::move(kernel), in, out](const Call& call, int64_t begin, int64_t end) {
            kernel.run(in.in(call), out.in(call), begin, end);
          }};
}

inline ToCodes toCodes(const Grid& grid) {
  return {1 / static_cast<float>(grid.scale), static_cast<float>(offsetOf(grid)), codeRangeOf(grid)};
}

inline Quantize quantizeTo(const Grid& grid) {
  const auto [inverse_scale, offset, range] = toCodes(grid);
  return {inverse_scale, offset, range};
}

// The strides of a tensor that the plan takes or gives. `channel` is the stride of the channels.
JIT_PASSES_API Strides floatStrides(const Dims& dims, at::IntArrayRef strides, int64_t channel);

// Copies float32 inputs of the plan, by number, and its results.
Part taken(size_t source, const Memory& to);
Part given(const Memory& from, const Sizes& strides, size_t number);
// Quantizes on the grid of the codes, or on a grid found at run time.
JIT_PASSES_API Part quantized(const Memory& from, const Memory& to, std::optional<DynamicGrid> grid = {});
JIT_PASSES_API Part dequantized(const Memory& from, const Memory& to);

// Parts of dynamic operators.
Part measured(const Memory& from, const Memory& to);
Part quantizedRows(const Operator& op, const Step& step, const std::vector<Memory>& memory);
std::vector<Part> toFloats(const Operator& op, const Step& step, const std::vector<Memory>& memory);

// Copies, also into a part of a concatenation.
Part copied(const Step& step, const Memory& from, const Memory& to);
// Matrix products. Both functions need kernels of one form: `product` reads the operand that `packedOperand` has
// packed.
Part packedOperand(const Step& step, const std::vector<Memory>& memory, Form form);
Part product(const Step& step, const std::vector<Memory>& memory, Form form);

} // namespace jit_passes::x86
