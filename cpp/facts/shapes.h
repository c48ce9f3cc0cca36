// Shapes of tensors before a model runs: ranks, and sizes that are numbers or equal to each other.
//
// Operands of convolutions and pools are assumed to have a batch axis, unless a pass asks for certain facts only, or
// for facts without that axis.
#pragma once

#include "known_values.h"
#include "ranks.h"

namespace jit_passes {

// Whether the node casts its operand to float32, and changes nothing else.
bool isToFloat(const Node* node);

// To be made before any edit.
class Shapes {
 public:
  // `images` says whether operands of convolutions and pools have a batch axis if the graph does not say so.
  explicit Shapes(const PassContext& context, Images images = Images::Batched)
      : graph_(context.graph()), known_(context), images_(images) {}

  Shapes(const Shapes&) = delete;
  Shapes& operator=(const Shapes&) = delete;

  std::optional<int64_t> rank(const Value* tensor) const { return ranks().axes(tensor).exact(); }
  // The fewest axes that the tensor can have; 0 if nothing is known.
  int64_t leastRank(const Value* tensor) const { return ranks().axes(tensor).least; }
  AxisRange axes(const Value* tensor) const { return ranks().axes(tensor); }
  // The number of elements of a list of sizes.
  std::optional<int64_t> length(const Value* list) const { return ranks().length(list); }
  Extent ofNumber(const Value* value) const;
  // The size of an axis, never open. A negative axis counts from the end.
  Extent ofAxis(const Value* tensor, int64_t axis) const {
    return ofAxis(tensor, axis, Extent::ofAxis(tensor, axis));
  }
  // The sizes in the list of a reshape, unflatten or expand. An integer that may be -1 at run time becomes open if
  // the other sizes determine it, else the size of the result's axis. So every integer that is left is a size for
  // certain.
  std::optional<std::vector<Extent>> sizesGiven(const Value* tensor) const;
  // The sizes in a list, whose integers may be -1.
  std::optional<std::vector<Extent>> sizesIn(const Value* list) const;
  // The elements of a list, if its length is known.
  std::optional<std::vector<Extent>> ofList(const Value* list) const;
  // Whether a number is computed from sizes in a way that it cannot be negative.
  bool isNotNegative(const Value* number) const;
  // The dividend and the divisor of a size that is a quotient.
  std::optional<std::pair<Extent, int64_t>> asQuotient(const Extent& extent) const;
  // The size of the last axis that a linear layer demands of the tensor.
  std::optional<int64_t> featuresRead(const Value* tensor) const;
  // The axis of size 1 that the node removes, if it is a squeeze.
  std::optional<int64_t> squeezed(const Node* node) const;
  // Whether `tensor` is computed from `whole` element by element, and by reductions that keep the reduced axes.
  bool isReducedOf(const Value* tensor, const Value* whole) const;
  // The rank of a linear layer's weight. With rank 1 the layer gives one number for each row.
  std::optional<int64_t> weightRank(const Node* linear) const;
  // The first value that the tensor is computed from by operators that keep the shape. A written value ends the
  // search, since a write may change the shape.
  const Value* source(const Value* tensor) const;
  bool isWritten(const Value* value) const { return known_.isWritten(value); }
  std::optional<at::Tensor> constant(const Value* tensor) const { return known_.tensor(tensor); }

 private:
  friend class Ranks;
  friend std::optional<Extent> sizeOfReshaped(const Value* result, int64_t axis, const Shapes& shapes);

  // The first axis that flatten or unflatten changes, and the number of axes there: `first` in the operand, `second`
  // in the result.
  struct Split {
    int64_t axis, first, second;
  };

  std::optional<Split> split(const Node* node) const;
  const Ranks& ranks() const;
  // Forgets sizes that were found with fewer ranks.
  void forgetSizes() const;
  // For the result of a linear layer, or a part of one: the tensor that the layer reads, and the least number of
  // features.
  struct Layered {
    const Value* from;
    int64_t features;
  };
  std::optional<Layered> layered(const Value* tensor) const;
  std::optional<std::pair<const Value*, int64_t>> countedIn(const Node* reshape) const;
  // `opaque` if nothing is known of the size.
  Extent ofAxis(const Value* tensor, int64_t axis, Extent opaque) const;
  Extent findNumber(const Value* value) const;
  bool findNotNegative(const Value* number) const;
  std::optional<Extent> ofOpen(const Node* unflatten, const std::vector<Extent>& sizes) const;
  std::optional<Extent> ofRest(const Extent& whole, int64_t others) const;
  std::optional<int64_t> ofArithmetic(const Node* node) const;
  Extent ofElement(const Value* list, int64_t index, const Extent& otherwise) const;

  std::shared_ptr<torch::jit::Graph> graph_;
  KnownValues known_;
  Images images_;
  // Answers so far, so each value is looked at once.
  mutable std::unique_ptr<Ranks> ranks_;
  mutable std::map<std::pair<const Value*, int64_t>, Extent> extents_;
  mutable std::unordered_map<const Value*, int64_t> numbers_;
  mutable std::unordered_map<const Value*, bool> not_negative_;
};

// The rank of the first operand of each node, by the node's number in program order, where it is known.
std::map<int64_t, int64_t> operandRanks(const torch::jit::Module& module, const std::string& method);

} // namespace jit_passes
