// Steps over memory: a program once it is known where its values lie.
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
  bool adds_in_place = false;      // adds the numbers that its result replaces, element by element
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

// The input that a layer in float32 adds to its result, if it does: the last one.
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

} // namespace jit_passes::x86
