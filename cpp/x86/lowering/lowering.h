// State of lowering while it goes over the operators, and how steps and memory are made.
#pragma once

#include "geometry.h"
#include "joins.h"
#include "x86/program/declaration.h"

namespace jit_passes::x86 {

// The axes that are longer than 1 in the order in which they lie in memory.
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

// The axis that an operator wants innermost, of an operand with so many; nothing for those that take any.
std::optional<int64_t> channelAxis(const Operator& op, int64_t rank);

// Lowers all operators in order, each by the function that its declaration names, which reads and changes this state.
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
  // Channels of a value, where they are.
  size_t slice(size_t whole, const Grid* grid, int64_t start, int64_t length);

  // The value with channels along that axis.
  size_t want(int64_t value, int64_t axis);
  // All operands, each with the channels innermost that the operator wants.
  std::vector<size_t> wantAll(const Operator& op);

  // The last step, which gives the operator's result.
  void emit(Does does, size_t index, std::vector<size_t> inputs, int64_t axis);
  // The table that alone reads the result becomes part of the step, or the function that reads products of float32.
  // Returns the value that the step gives then.
  int64_t emitWithTable(Does does, size_t index, std::vector<size_t> inputs, int64_t axis);
  // The result has the bytes of the operand.
  void rename(size_t index, size_t input, int64_t axis);

  // Whether only products read it, so that nothing is copied.
  bool isView(size_t index) const { return views.count(index) > 0; }
  bool isQuantize(size_t use) const {
    return use != SIZE_MAX && program.operators[use].kind == Kind::Quantize;
  }
  // The axis that is innermost in the operand.
  int64_t ownAxis(const Operator& op) { return memory(primary[op.inputs[0]]).axis; }

  const Program& program;
  const std::vector<Sizes>& sizes;
  const std::vector<bool>& contiguous; // inputs
  Weights& weights;
  Joins joins;
  Lowered result;
  std::vector<std::vector<size_t>> uses; // operators that read a value; SIZE_MAX where it is returned
  std::vector<size_t> makers;            // operators by their results
  std::vector<int64_t> wanted;           // axis
  std::vector<size_t> primary;           // memory of a value
  std::unordered_set<size_t> fused;      // operators that are part of the step of another one
  std::unordered_set<size_t> views;
  std::unordered_set<size_t> unread; // operators that spread a number, which nobody reads
  std::unordered_map<int64_t, const Operator*>
      joined; // concatenations that interleaving makes, by their value
  // Of float32, and how it is quantized: rows or an image, the axis of its channels, per row, the form of the range.
  std::map<std::tuple<size_t, bool, int64_t, bool, int64_t>, std::vector<size_t>> quantized;

 private:
  void readUses();
  void findViews();
  void findBorders();
  void settleNames();
  void placeResults();

  std::map<std::pair<int64_t, int64_t>, size_t> copies; // of a value, by axis
};

} // namespace jit_passes::x86
