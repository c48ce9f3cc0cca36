// Which values lack a batch axis where the model's data do, and how they would be with one.
#pragma once

#include "facts/assumed_ranks.h"
#include "graph/registry.h"

namespace jit_passes {

constexpr int64_t kBatched = 3; // axes of data with a batch

// A value without a batch, compared with the same value with one.
struct Form {
  Value* root;  // the tensor whose rank says whether there is a batch
  int64_t axis; // that of the batch, where there is one
  bool lacks;   // without a batch, the value has no such axis; else it has one of size 1
};

// A result of a branch on a rank: the value that both sides move, and how the side with a batch orders its axes.
struct MovedResult {
  Value* base;
  std::vector<int64_t> order;
};

// The value that a side of a branch moves, and the operators that do so, in order.
std::pair<Value*, std::vector<Node*>> movesOf(const Value* output, size_t side);

// Found node by node: without a batch, each of these values is the same as with one of size 1, but for that axis. And
// the model raises an error for roots of any other rank.
class BatchForms {
 public:
  explicit BatchForms(const PassContext& context);

  // In the order of the graph; none if no branch of the model adds the axis that is missing.
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
  std::map<Value*, int64_t, ByNumber> roots_; // with the axis that each lacks
  // Of the last walk:
  std::unordered_map<const Value*, Form> forms_;
  std::vector<Value*> order_;
  std::unordered_map<const Value*, MovedResult> moved_;
  std::set<Value*> regained_, wanted_;       // roots
  std::set<std::pair<Value*, Value*>> ties_; // roots that one branch is about
};

} // namespace jit_passes
