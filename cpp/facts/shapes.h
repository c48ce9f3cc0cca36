// Knowledge of tensors' shapes before a model runs: ranks, and which sizes are equal or numbers.
//
// Convolutions and pools are taken to have a batch axis, unless a pass asks for what is certain.
#pragma once

#include "known_values.h"
#include "ranks.h"

namespace jit_passes {

// Whether it gives its operand in float32, and changes nothing else.
bool isToFloat(const Node* node);

// Taken once, before any edit.
class Shapes {
 public:
  // With `batched`, operands of convolutions and pools have a batch axis, whatever the graph knows of them.
  explicit Shapes(const PassContext& context, bool batched = true)
      : graph_(context.graph()), known_(context), batched_(batched) {}

  Shapes(const Shapes&) = delete;
  Shapes& operator=(const Shapes&) = delete;

  std::optional<int64_t> rank(const Value* tensor) const { return ranks().axes(tensor).exact(); }
  // No more than the rank; 0 where nothing is known.
  int64_t leastRank(const Value* tensor) const { return ranks().axes(tensor).least; }
  AxisRange axes(const Value* tensor) const { return ranks().axes(tensor); }
  // The number of elements of a list of sizes.
  std::optional<int64_t> length(const Value* list) const { return ranks().length(list); }
  Extent ofNumber(const Value* value) const;
  // A size, never open. Axes count from the end where they are below 0.
  Extent ofAxis(const Value* tensor, int64_t axis) const {
    return ofAxis(tensor, axis, Extent::ofAxis(tensor, axis));
  }
  // The sizes that a reshape, unflatten or expand is given. An integer among them is a size for certain: one that may
  // be -1 is open if the others tell it in either case, else it is the size of the result's own axis.
  std::optional<std::vector<Extent>> sizesGiven(const Value* tensor) const;
  // The same of a list alone, whose integers may be -1.
  std::optional<std::vector<Extent>> sizesIn(const Value* list) const;
  // The numbers of a list, if it is known how many there are.
  std::optional<std::vector<Extent>> ofList(const Value* list) const;
  // Whether a number is made of sizes so that it cannot be below 0.
  bool isNotNegative(const Value* number) const;
  // Of a size that is a quotient: the size that is divided, and by which number.
  std::optional<std::pair<Extent, int64_t>> asQuotient(const Extent& extent) const;
  // The size of the last axis that a linear layer takes the tensor with.
  std::optional<int64_t> featuresRead(const Value* tensor) const;
  // The axis of size 1 that squeeze takes away, if that is what the node does.
  std::optional<int64_t> squeezed(const Node* node) const;
  // Whether it is made of the other tensor element by element, and by going over axes that stay, of size 1.
  bool isReducedOf(const Value* tensor, const Value* whole) const;
  // Axes of a linear layer's weight: one, and the layer gives a number for each row.
  std::optional<int64_t> weightRank(const Node* linear) const;
  // Behind what keeps the shape. A value that is written to may have had another one.
  const Value* source(const Value* tensor) const;
  bool isWritten(const Value* value) const { return known_.isWritten(value); }
  std::optional<at::Tensor> constant(const Value* tensor) const { return known_.tensor(tensor); }

 private:
  friend class Ranks;
  friend std::optional<Extent> sizeOfReshaped(const Value* result, int64_t axis, const Shapes& shapes);

  // The first axis that flatten or unflatten works on, and how many become how many: of the operand, of the result.
  struct Split {
    int64_t axis, first, second;
  };

  std::optional<Split> split(const Node* node) const;
  const Ranks& ranks() const;
  // Sizes that were found with fewer ranks known.
  void forgetSizes() const;
  // Of what a linear layer gives, or of a part: the tensor that it reads, and features that are not fewer than
  // these, for each place in front of the last axis.
  struct Layered {
    const Value* from;
    int64_t features;
  };
  std::optional<Layered> layered(const Value* tensor) const;
  std::optional<std::pair<const Value*, int64_t>> countedIn(const Node* reshape) const;
  // `opaque` where nothing is known of the tensor.
  Extent ofAxis(const Value* tensor, int64_t axis, Extent opaque) const;
  Extent findNumber(const Value* value) const;
  bool findNotNegative(const Value* number) const;
  std::optional<Extent> ofOpen(const Node* unflatten, const std::vector<Extent>& sizes) const;
  std::optional<Extent> ofRest(const Extent& whole, int64_t others) const;
  std::optional<int64_t> ofArithmetic(const Node* node) const;
  Extent ofElement(const Value* list, int64_t index, const Extent& otherwise) const;

  std::shared_ptr<torch::jit::Graph> graph_;
  KnownValues known_;
  bool batched_;
  // Answers given so far, so that each value is looked at once.
  mutable std::unique_ptr<Ranks> ranks_;
  mutable std::map<std::pair<const Value*, int64_t>, Extent> extents_;
  mutable std::unordered_map<const Value*, int64_t> numbers_;
  mutable std::unordered_map<const Value*, bool> not_negative_;
};

// By number of a node in program order: how many axes its first operand has, where that is known.
std::map<int64_t, int64_t> operandRanks(const torch::jit::Module& module, const std::string& method);

} // namespace jit_passes
