// The state of lowering while it goes over the operators, with functions that make steps and memory.
#pragma once

#include "geometry.h"
#include "joins.h"
#include "x86/program/declaration.h"

namespace jit_passes::x86 {

// The axes longer than 1, in memory order.
inline Sizes orderOf(const Sizes& sizes, int64_t axis) {
  Sizes order;
  for (int64_t i = 0; i < int64_t(sizes.size()); ++i) {
    if (i != axis && sizes[i] != 1) {
      order.push_back(i);
    }
  }
  if (axis >= 0 && sizes[axis] != 1) {
    order.push_back(axis);
  }
  return order;
}

inline bool inOrder(const Sizes& order) { return std::is_sorted(order.begin(), order.end()); }

inline int64_t countInFront(const Sizes& sizes, int64_t axis) {
  return countOf({sizes.begin(), sizes.begin() + axis});
}

inline int64_t lastAxis(const Sizes& sizes) { return static_cast<int64_t>(sizes.size()) - 1; }

inline Sizes identity(size_t rank) {
  Sizes axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

inline bool sameGrid(const Grid& a, const Grid& b) {
  return a.scale == b.scale && a.zero_point == b.zero_point;
}

// The axis that an operator needs innermost in an operand of this rank. Nothing if it takes any order.
std::optional<int64_t> channelAxis(const Operator& op, int64_t rank);
// The innermost axis that the declaration asks for; an error if the declaration asks for none.
int64_t neededAxis(const Operator& op, int64_t rank);
// For functions that lower operators with so many operands at least.
void requireInputs(const Operator& op, size_t least);

// Lowers all operators in order, each by its declaration's function, which reads and changes this state.
class Lowering {
 public:
  Lowering(
      const Program& program, const std::vector<Sizes>& sizes, const std::vector<bool>& contiguous,
      Weights& weights)
      : program(program), sizes(sizes), contiguous(contiguous), weights(weights), joins(program, sizes) {}

  Lowered run(std::vector<Sizes> orders);
  void lowerOperator(size_t index);

  size_t push(Step step) {
    result.steps.push_back(std::move(step));
    return result.steps.size() - 1;
  }

  size_t addMemory(Memory memory) {
    result.memory.push_back(std::move(memory));
    return result.memory.size() - 1;
  }

  size_t addMemory(int64_t value, int64_t axis) {
    return primary[value] = addMemory({.sizes = sizes[value], .axis = axis, .grid = &program.grids[value]});
  }

  Memory& memory(size_t id) { return result.memory[id]; }
  // A slice of a value's channels, in place.
  size_t slice(size_t whole, const Grid* grid, int64_t start, int64_t length);

  // The memory of a value with this axis innermost, copied if necessary.
  size_t want(int64_t value, int64_t axis);
  // The memory of all operands, each with the operator's channels innermost.
  std::vector<size_t> wantAll(const Operator& op);

  // Adds the operator's last step, which gives its result.
  void emit(Does does, size_t index, std::vector<size_t> inputs, int64_t axis);
  // emit, with a step that includes a table or a float32 function if that is the only reader of the result. Returns
  // the value that the step gives.
  int64_t emitWithTable(Does does, size_t index, std::vector<size_t> inputs, int64_t axis);
  // Lets the last step give codes if the only reader of its float32 result, `value`, quantizes. Returns whether it does.
  bool emitQuantize(int64_t value);
  // Lets the result share the bytes of the operand.
  void rename(size_t index, size_t input, int64_t axis);

  // Whether only products read the operator's result, so no copy is made.
  bool isView(size_t index) const { return views.count(index) > 0; }
  bool isQuantize(size_t use) const {
    return use != SIZE_MAX && program.operators[use].kind == Kind::Quantize;
  }
  // The innermost axis of the operand.
  int64_t ownAxis(const Operator& op) { return memory(primary[op.inputs[0]]).axis; }

  const Program& program;
  const std::vector<Sizes>& sizes;
  const std::vector<bool>& contiguous; // for each input
  Weights& weights;
  Joins joins;
  Lowered result;
  std::vector<std::vector<size_t>> uses; // operators that read each value; SIZE_MAX if it is returned
  std::vector<size_t> makers;            // the operator that makes each value
  std::vector<int64_t> wanted;           // the innermost axis of each value
  std::vector<size_t> primary;           // the memory of each value
  std::unordered_set<size_t> fused;      // operators that another operator's step includes
  std::unordered_set<size_t> views;
  std::unordered_set<size_t> unread; // constants and expansions without readers
  std::unordered_map<int64_t, const Operator*>
      joined; // concatenations that an interleaving step makes, by value
  // Memory that has been quantized, with the options: rows or an image, axis of channels, per row, form of the
  // range.
  std::map<std::tuple<size_t, bool, int64_t, bool, int64_t>, std::vector<size_t>> quantized;

 private:
  void readUses();
  void findViews();
  void findBorders();
  void settleNames();
  void placeResults();

  std::map<std::pair<int64_t, int64_t>, size_t> copies; // (value, innermost axis)
};

} // namespace jit_passes::x86
