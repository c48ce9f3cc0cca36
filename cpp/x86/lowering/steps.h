// Steps over memory: a program whose values have places in memory.
#pragma once

#include "views.h"
#include "weights.h"
#include "x86/kernels/dynamic.h"
#include "x86/program/declaration.h"

namespace jit_passes::x86 {

// A value in memory, or one of its copies. The axis `axis`, the channels, is innermost; the other axes have the
// order of the sizes. Axis -1: no channels, the last axis is innermost.
struct Memory {
  enum class Is { Own, Same, Slice, Block };

  Sizes sizes;
  int64_t axis;
  const Grid* grid; // null for bytes whose format only the steps know
  Is is = Is::Own;
  size_t parent =
      0; // the memory that has its bytes: all of them (Same), some channels (Slice) or neighbours (Block)
  int64_t start = 0; // the first channel of a slice, the first element of a block
  Border border = {};
  size_t first = SIZE_MAX, last = 0; // the first and last step that uses it
  // 0: the arena; then the tensors that the plan takes, the tensors that it gives, and constants.
  size_t home = 0;
  int64_t offset = 0; // of the first pixel, in its home
  Sizes strides = {}; // in bytes

  int64_t channels() const { return axis < 0 ? 1 : sizes[axis]; }
  int64_t bytes() const { return grid == nullptr ? 1 : grid->bytes(); } // of an element
};

struct Step {
  Does does;
  size_t index;                    // the operator
  std::vector<size_t> inputs;      // Convolve adds the second one
  size_t output;                   // Exit: the number of the output
  bool elementwise = false;        // see Declaration
  bool adds_in_place = false;      // adds the numbers that its result replaces, element by element
  size_t source = 0;               // Enter and Take: the number of the input
  std::optional<size_t> kept = {}; // rows that become codes: also their float32, if others read it
  const uint8_t* table = nullptr;
  FloatFunction function = {}; // applied to the result, in float32
  const Grid* grid = nullptr;  // of the result before the table
  std::shared_ptr<const Packed> packed = nullptr;
  // Chain: convolutions, each the only reader of the one before. `inputs` are the inputs from outside.
  std::vector<Step> chain = {};
  // Copy and Interleave: a table for each operand, undefined if its codes do not change. Other steps: the table, if
  // it belongs to no operator.
  std::vector<at::Tensor> own_tables = {};
  // Copy and Product: for each axis of the result, the axis of the operand, or -1 if elements are repeated; and the
  // place in the result where the operand begins, as axis and element.
  Sizes axes = {};
  int64_t along = 0, start = 0;
  std::optional<Range> range = {}; // the elements of the operand that are read
  // Pack and Product: the rearrangements between memory and each operand.
  std::vector<std::vector<Rearranged>> views = {};
};

// The memory that a layer in float32 adds to its result: its last input. Nothing if it adds none.
std::optional<size_t> addendOf(const Step& step, const Operator& op);

// The function of an operator `function`.
FloatFunction functionOf(const Operator& op);

// The size of the grids in front of rows of codes, one grid for each row.
int64_t bytesOfGrids(int64_t rows);
// The size of the extents from which one grid for all lines follows, and of a flag for each line.
inline int64_t bytesOfExtents(int64_t lines) { return Measure::kParts * int64_t(sizeof(Extent)) + lines; }

struct Lowered {
  std::vector<Memory> memory;
  std::vector<Step> steps;
  int64_t bytes = 0;                      // size of the arena
  std::vector<Sizes> orders;              // of the axes of each output in memory
  std::vector<at::Tensor> constants = {}; // that steps read where they are
};

} // namespace jit_passes::x86
