// Values next to each other in memory: concatenations, and operators that read several values as one.
//
// A list of values may begin with another list, as in a dense block, where each layer reads all earlier results.
// The two lists then have one memory, and the shorter list is its front. A value is computed at its place in the list.
// The value is copied only if it has another grid, another layout, or a place in another list already.
#pragma once

#include "steps.h"

namespace jit_passes::x86 {

// The program for inputs of these sizes, without concatenated operands of shape [0], such as a cache before the
// first call. Nothing if there are none. A list of these operands alone stays.
std::optional<Program> withoutEmptyParts(const Program& program, const std::vector<Sizes>& inputs);

class Joins {
 public:
  Joins(const Program& program, const std::vector<Sizes>& sizes);

  // The memory of all operands of an operator, one after the other. `operands` are the memories of the values, with
  // axis `axis` innermost.
  size_t place(Lowered& lowered, size_t index, const std::vector<size_t>& operands, int64_t axis);

 private:
  // A value, and the scale and zero point of its codes in the list.
  using Entry = std::tuple<int64_t, double, int64_t>;
  struct List {
    int64_t along; // axis
    std::vector<Entry> entries;
    Sizes sizes;
    const Grid* grid; // the grid of the list; if grids differ, the first value's
    bool mixed;       // whether grids differ
    size_t whole;     // the operator with the longest list that begins with this one
  };
  struct Buffer {
    size_t memory;
    size_t filled = 0; // number of entries
  };

  void add(size_t index, int64_t along, bool as_they_are, const std::vector<Sizes>& sizes);
  void findWholes();
  void put(Lowered& lowered, size_t index, size_t entry, size_t operand, int64_t start, const Buffer& buffer);

  const Program& program_;
  std::map<size_t, List> lists_;                         // by operator
  std::map<std::pair<size_t, int64_t>, Buffer> buffers_; // by operator and innermost axis
  std::unordered_set<int64_t> bordered_;                 // values that convolutions read
};

// Removes copies of values into lists along an outer axis, such as a stack of caches: the value is computed at its
// place in the list, where its elements are neighbours. For steps whose values have their borders and names.
void joinBlocks(Lowered& lowered, const Program& program);
// Removes copies of parts along an outer axis, such as query, key and value out of one product: a part is a name for
// neighbours in the whole. For steps behind `joinBlocks`.
void nameBlocks(Lowered& lowered);

} // namespace jit_passes::x86
