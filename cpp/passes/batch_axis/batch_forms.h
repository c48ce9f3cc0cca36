// Values that lack a batch axis if the model's data do, and their form with one.
#pragma once

#include "facts/assumed_ranks.h"
#include "graph/registry.h"

namespace jit_passes {

constexpr int64_t kBatched = 3; // axes of data with a batch

// The form of a value without a batch, compared with a batch.
struct Form {
  Value* root;  // the tensor whose rank tells whether there is a batch
  int64_t axis; // the batch axis, if there is a batch
  bool lacks;   // whether the value lacks this axis without a batch, or has it with size 1
};

// A result of a branch on a rank: the value that both sides move, and the order of its axes on the side with a
// batch.
struct MovedResult {
  Value* base;
  std::vector<int64_t> order;
};

// The value that a side of a branch moves, and the operators that move it, in order.
std::pair<Value*, std::vector<Node*>> movesOf(const Value* output, size_t side);

// Finds, node by node, the values that are equal without a batch and with a batch of size 1, except for the batch
// axis. The model raises an error for roots of any other rank.
class BatchForms {
 public:
  explicit BatchForms(const PassContext& context);

  // In the order of the graph. Empty if no branch of the model gives a value its batch axis back.
  const std::vector<Value*>& values() const { return order_; }
  const Form* find(const Value* value) const;
  const MovedResult& moved(const Value* value) const { return moved_.at(value); }

 private:
  using Axes = std::vector<int64_t>;
  struct ByNumber {
    bool operator()(const Value* a, const Value* b) const { return a->unique() < b->unique(); }
  };

  bool settle();
  void walk();
  void add(Value* value, const Form& form);
  void addRoot(Value* value);
  const Form* lacking(const Value* value) const;
  Value* rootOf(Value* value) const;
  AssumedRanks assuming(const Value* root, int64_t rank, int64_t others) const;
  bool takesNoOther(const Value* root) const;
  bool want(Value* root);
  void readBranch(Node* branch);
  void readResult(Value* output, Value* root, size_t batched_side);
  bool move(
      const std::vector<Node*>& moves, Axes& axes, const Value* base, const Value* root, int64_t missing,
      int64_t& batch) const;
  bool isBatch(const Value* value, int64_t axis, const Value* root) const;
  std::optional<Form> formOf(const Node* node) const;
  std::optional<Form> formOfBoth(const Value* a, const Value* b) const;

  std::shared_ptr<Graph> graph_;
  Shapes shapes_;
  std::map<Value*, int64_t, ByNumber> roots_; // with the axis that each root lacks
  // The results of the last walk:
  std::unordered_map<const Value*, Form> forms_;
  std::vector<Value*> order_;
  std::unordered_map<const Value*, MovedResult> moved_;
  std::set<Value*> regained_, wanted_;       // roots
  std::set<std::pair<Value*, Value*>> ties_; // pairs of roots that meet in one branch
};

} // namespace jit_passes
