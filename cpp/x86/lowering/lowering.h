// State of lowering while it goes over the operators, and how it makes steps and memory.
#pragma once

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

class Values {
 protected:
  using Is = Memory::Is;

  Values(const Program& program, const std::vector<Sizes>& sizes) : program_(program), sizes_(sizes) {}

  size_t push(Step step) {
    result_.steps.push_back(std::move(step));
    return result_.steps.size() - 1;
  }

  size_t addMemory(Memory memory) {
    result_.memory.push_back(std::move(memory));
    return result_.memory.size() - 1;
  }

  size_t addMemory(int64_t value, int64_t axis) {
    return primary_[value] =
               addMemory({.sizes = sizes_[value], .axis = axis, .grid = &program_.grids[value]});
  }

  Memory& memory(size_t id) { return result_.memory[id]; }

  // The value with channels along that axis.
  size_t want(int64_t value, int64_t axis) {
    const size_t id = primary_[value];
    const Memory from = memory(id);
    if (from.axis == axis) {
      return id;
    }
    const auto [found, added] = copies_.emplace(std::pair(value, axis), 0);
    if (added) {
      Memory to{.sizes = from.sizes, .axis = axis, .grid = from.grid};
      Step step{.does = Does::Copy, .index = 0, .inputs = {id}, .output = 0};
      if (orderOf(from.sizes, from.axis) == orderOf(from.sizes, axis)) {
        to.is = Is::Same, to.parent = id;
        step.does = Does::Rename;
      } else {
        step.axes = identity(from.sizes.size());
      }
      step.output = found->second = addMemory(to);
      push(step);
    }
    return found->second;
  }

  static Sizes identity(size_t rank) {
    Sizes axes(rank);
    std::iota(axes.begin(), axes.end(), 0);
    return axes;
  }

  void emit(Does does, size_t index, std::vector<size_t> inputs, int64_t axis) {
    const Operator& op = program_.operators[index];
    const size_t output = addMemory(op.output, axis);
    push(
        {.does = does,
         .index = index,
         .inputs = std::move(inputs),
         .output = output,
         .elementwise = does == Does::Compute && declarationOf(op.kind).elementwise,
         .grid = memory(output).grid});
  }

  // The table that alone reads the result becomes part of the step, or the function that reads products of float32.
  // Returns the value that the step gives then.
  int64_t emitWithTable(Does does, size_t index, std::vector<size_t> inputs, int64_t axis);

  const Program& program_;
  const std::vector<Sizes>& sizes_;
  Lowered result_;
  std::vector<std::vector<size_t>> uses_; // operators that read a value; SIZE_MAX where it is returned
  std::vector<int64_t> wanted_;           // axis
  std::vector<size_t> primary_;           // memory of a value
  std::map<std::pair<int64_t, int64_t>, size_t> copies_;
  std::unordered_set<size_t> fused_;
};

// The last axis that is not rolled, or -1.
int64_t restingAxis(const Operator& roll, int64_t rank);

// Operators that only move codes.
class Moves : public Values {
 public:
  void lowerConcat(size_t index);
  void lowerPad(size_t index);
  void lowerReshape(size_t index);
  void lowerPermute(size_t index);
  void lowerExpand(size_t index);
  void lowerRoll(size_t index);
  void lowerPart(size_t index);
  void lowerShuffle(size_t index);

 protected:
  Moves(const Program& program, const std::vector<Sizes>& sizes)
      : Values(program, sizes), joins_(program, sizes) {}

  Joins joins_;

 private:
  void rescale(size_t id, const Grid* grid);
  void rename(size_t index, size_t input, int64_t axis);
  size_t slice(size_t whole, const Grid* grid, int64_t start, int64_t length);
  bool isShuffledAlone(const Operator& concat) const;

  std::unordered_map<int64_t, const Operator*>
      joined_; // concatenations that interleaving makes, by their value
};

// The axis that an operator wants innermost, of an operand with so many; nothing for those that take any.
std::optional<int64_t> channelAxis(const Operator& op, int64_t rank);

// Matrix products read their operands where they are, and write where a transposition wants the result.
class Products : public Moves {
 public:
  void lowerProduct(size_t index);

 protected:
  using Moves::Moves;

  void findViews();
  // Whether only products read it, so that nothing is copied.
  bool isView(size_t index) const { return views_.count(index) > 0; }
  virtual void lowerOperator(size_t index) = 0;

  std::vector<size_t> makers_; // operators by their results

 private:
  struct Operand {
    size_t memory;
    std::vector<Rearranged> views;
    View view; // for memory whose axes are far apart, but for that of its channels
  };

  Operand operand(int64_t value, bool left);
  std::vector<Rearranged> viewsOf(const std::vector<size_t>& chain) const;
  int64_t scaleResult(int64_t value);
  void transposeResult(int64_t value);

  std::unordered_set<size_t> views_;
};

// Operators that quantize their input as the plan runs.
class Dynamics : public Products {
 public:
  // With a function and a sum that alone read the result, if the other operand is there already.
  void lowerDynamic(size_t index);

 protected:
  Dynamics(const Program& program, const std::vector<Sizes>& sizes, Weights& weights)
      : Products(program, sizes), weights_(weights) {}

  Weights& weights_;

 private:
  std::vector<size_t> quantized(size_t index);

  // Of float32, and how it is quantized: rows or an image, the axis of its channels, per row, the form of the range.
  std::map<std::tuple<size_t, bool, int64_t, bool, int64_t>, std::vector<size_t>> quantized_;
};

// Lowers all operators in order, each by the method that its declaration names.
class Lowering : public Dynamics {
 public:
  Lowering(
      const Program& program, const std::vector<Sizes>& sizes, const std::vector<bool>& contiguous,
      Weights& weights)
      : Dynamics(program, sizes, weights), contiguous_(contiguous) {}

  Lowered run(std::vector<Sizes> orders);

  // General methods, which make the step that is declared: with the channels of all operands innermost; the same with
  // a table or function that follows; with operands that broadcast; of rows, with the quantize that follows; of the
  // operand, or of several, as they lie in memory.
  void lowerChannels(size_t index);
  void lowerWithTable(size_t index);
  void lowerBroadcast(size_t index);
  void lowerRows(size_t index);
  void lowerInPlace(size_t index);
  void lowerAsTheyAre(size_t index);

  void lowerInput(size_t index);
  void lowerQuantize(size_t index);
  void lowerConstant(size_t index);
  void lowerNothing(size_t /*index*/) {}
  void lowerFunction(size_t index);
  void lowerTable(size_t index);
  void lowerAffine(size_t index);
  void lowerMean(size_t index);
  void lowerReduction(size_t index);
  void lowerRecurrent(size_t index);

 private:
  void lowerOperator(size_t index) override;
  void readUses();
  void findBorders();
  void settleNames();
  void placeResults();

  // As the operand has it in memory.
  int64_t ownAxis(const Operator& op) { return memory(primary_[op.inputs[0]]).axis; }
  std::vector<size_t> wantAll(const Operator& op);
  bool isQuantize(size_t use) const {
    return use != SIZE_MAX && program_.operators[use].kind == Kind::Quantize;
  }

  const std::vector<bool>& contiguous_;
};

} // namespace jit_passes::x86
