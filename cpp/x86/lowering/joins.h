// Values side by side in memory: concatenations, and operators that read several values as one.
//
// One list of values may begin with another, as in a dense block, where each layer reads all before it. Then both
// have the same memory, and the shorter one reads the front of it. A value is computed where it is needed; it is
// copied only where it has another grid, another layout, or a place already.
#pragma once

#include "steps.h"

namespace jit_passes::x86 {

// The program without the operands that are [0], such as a cache in front of the first call, for inputs of these sizes;
// nothing where there are none. A list of these alone stays.
std::optional<Program> withoutEmptyParts(const Program& program, const std::vector<Sizes>& inputs);

class Joins {
 public:
  Joins(const Program& program, const std::vector<Sizes>& sizes);

  // The memory of all that an operator reads, one after the other. `operands` is where its values are, with the axis
  // `axis` innermost.
  size_t place(Lowered& lowered, size_t index, const std::vector<size_t>& operands, int64_t axis);

 private:
  // A value with the scale and the zero point that its codes have in the list.
  using Entry = std::tuple<int64_t, double, int64_t>;
  struct List {
    int64_t along; // axis
    std::vector<Entry> entries;
    Sizes sizes;
    const Grid* grid; // of what is read; of the first value where they differ
    bool mixed;       // whether they do
    size_t whole;     // the operator with the longest list that begins so
  };
  struct Buffer {
    size_t memory;
    size_t filled = 0; // entries
  };

  void add(size_t index, int64_t along, bool as_they_are, const std::vector<Sizes>& sizes);
  void findWholes();
  void put(Lowered& lowered, size_t index, size_t entry, size_t operand, int64_t start, const Buffer& buffer);

  const Program& program_;
  std::map<size_t, List> lists_;                         // by operator
  std::map<std::pair<size_t, int64_t>, Buffer> buffers_; // by operator and innermost axis
  std::unordered_set<int64_t> bordered_;                 // values that convolutions read
};

} // namespace jit_passes::x86
