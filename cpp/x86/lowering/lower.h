// From a program to steps over memory: which axis is innermost, which values are parts or other names of others, which
// have a border, and where each lies in the arena.
#pragma once

#include "views.h"
#include "weights.h"
#include "x86/kernels/dynamic.h"
#include "x86/program/declaration.h"

namespace jit_passes::x86 {

// A value in memory, or one of its copies. Axes other than that of the channels follow one another as they do in the
// sizes; channels are innermost. Axis -1: there are none, the last axis is innermost.
struct Memory {
  enum class Is { Own, Same, Slice };

  Sizes sizes;
  int64_t axis;
  const Grid* grid; // none for bytes that only one step understands
  Is is = Is::Own;
  size_t parent = 0; // which has the same bytes, or of which it is a slice of channels
  int64_t start = 0; // the first channel of a slice
  Border border = {};
  size_t first = SIZE_MAX, last = 0; // steps that write and read it
  // Where it lies: 0 is the arena, and behind that come the tensors that the plan takes, and those that it gives.
  size_t home = 0;
  int64_t offset = 0; // of the first pixel, there
  Sizes strides = {}; // in bytes

  int64_t channels() const { return axis < 0 ? 1 : sizes[axis]; }
  int64_t bytes() const { return grid == nullptr ? 1 : grid->bytes(); } // of an element
};

struct Step {
  Does does;
  size_t index;                    // of the operator
  std::vector<size_t> inputs;      // of Convolve, the second one is added
  size_t output;                   // of Exit: the number of the output
  bool elementwise = false;        // see Declaration
  size_t source = 0;               // of Enter and Take: the number of the input
  std::optional<size_t> kept = {}; // of rows that become codes: their float32, where others read it
  const uint8_t* table = nullptr;
  FloatFunction function = {}; // of the result, in float32
  const Grid* grid = nullptr;  // of the result before the table
  std::shared_ptr<const Packed> packed = nullptr;
  // Of Chain: convolutions of which each alone reads what the one before writes. Inputs are those from outside.
  std::vector<Step> chain = {};
  // Of Copy and Interleave: of each operand, undefined where its codes stay. Of others, the table where it is no
  // operator's.
  std::vector<at::Tensor> own_tables = {};
  // Of Copy and Product: an axis of the result is that axis of the operand, or -1 where elements are repeated; and
  // where in the result it begins.
  Sizes axes = {};
  int64_t along = 0, start = 0;
  std::optional<Range> range = {}; // of the operand
  // Of Pack and Product: what stands between memory and each operand.
  std::vector<std::vector<Rearranged>> views = {};
};

// The input that a dynamic operator adds to its result, if it does: the last one.
std::optional<size_t> addendOf(const Step& step, const Operator& op);

// Of an operator that is a function.
FloatFunction functionOf(const Operator& op);

// Of the grids in front of rows of codes that have one each.
int64_t bytesOfGrids(int64_t rows);
// Of the extents that one grid for all lines follows from, and of a flag for each line.
inline int64_t bytesOfExtents(int64_t lines) { return Measure::kParts * int64_t(sizeof(Extent)) + lines; }

struct Lowered {
  std::vector<Memory> memory;
  std::vector<Step> steps;
  int64_t bytes = 0;         // of the arena
  std::vector<Sizes> orders; // of the axes of each output in memory
};

// `contiguous`: which inputs are. `orders`: of the axes of each output. `weights` may be asked for what convolutions
// need around their input.
Lowered lower(
    const Program& program, const std::vector<Sizes>& sizes, const std::vector<bool>& contiguous,
    std::vector<Sizes> orders, Weights& weights);

// The memory of which it is a part or another name, or itself.
Memory& ownerOf(Lowered& lowered, size_t id);
// Makes one step of convolutions with large values in between, which then lie in no memory of their own.
void fuseChains(Lowered& lowered);
// Sets the strides of codes without anything in between.
void layOutDense(Memory& memory);
// Finds a place in the arena for all memory that steps touch.
void placeMemory(Lowered& lowered);

// The border that the kernels of a convolution read around an image.
Border borderOf(const Operator& op, const Packed& packed, const Image& in, const Image& out);
// Makes a border at least as wide as another.
void widen(Border& border, const Border& by);

// Images, planes, rows and columns of a value: which axis each counts, and how many of its elements at once.
struct Dim {
  int64_t size = 1, axis = -1, factor = 1;
};
using Dims = std::array<Dim, 4>;

// All axes but that of the channels, the last one being columns. Of more than `kMostAxes`, some count as one: memory
// has them side by side, and so have tensors that are contiguous.
Dims axisDims(const Sizes& sizes, int64_t axis);
// The same for what works pixel by pixel: where there are few rows, the last axis is divided into some.
Dims pixelDims(const Sizes& sizes, int64_t axis);
// Rows of its images: all but the last axis.
int64_t linesOf(const Dims& dims);
// Of a batch of images, or of one: what is behind the channels is spatial.
Dims imageDims(const Sizes& sizes, int64_t axis);
// With these strides of the axes, in no memory yet; `bytes` of an element.
Image imageOf(const Dims& dims, const Sizes& strides, int64_t channels, int64_t bytes = 1);

} // namespace jit_passes::x86
