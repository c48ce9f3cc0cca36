// Shapes of tensors before a model runs: ranks, and sizes that are numbers or equal to each other.
//
// Operands of convolutions and pools are assumed to have a batch axis, unless a pass asks for certain facts only, or
// for facts without that axis.
#pragma once

#include "known_values.h"
#include "ranks.h"

namespace jit_passes {

// To be made before any edit.
class Shapes final : public SizeFacts {
 public:
  // `images` says whether operands of convolutions and pools have a batch axis if the graph does not say so.
  // `attributes_apart` as in writtenValues.
  explicit Shapes(const PassContext& context, Images images = Images::Batched, bool attributes_apart = false)
      : graph_(context.graph()), known_(context, attributes_apart), images_(images) {}

  Shapes(const Shapes&) = delete;
  Shapes& operator=(const Shapes&) = delete;

  AxisRange axes(const Value* tensor) const override { return ranks().axes(tensor); }
  Extent ofAxis(const Value* tensor, int64_t axis) const override {
    return ofAxis(tensor, axis, Extent::ofAxis(tensor, axis));
  }
  Extent ofNumber(const Value* value) const override;
  std::optional<std::vector<Extent>> ofList(const Value* list) const override;
  bool isNotNegative(const Value* number) const override;
  std::optional<int64_t> squeezed(const Node* node) const override;
  bool isReducedOf(const Value* tensor, const Value* whole) const override;
  std::optional<int64_t> weightRank(const Node* linear) const override;
  const Value* source(const Value* tensor) const override;
  bool isWritten(const Value* value) const override { return known_.isWritten(value); }
  std::optional<at::Tensor> constant(const Value* tensor) const override { return known_.tensor(tensor); }

  // The number of elements of a list of sizes.
  std::optional<int64_t> length(const Value* list) const { return ranks().length(list); }
  // The dividend and the divisor of a size that is a quotient.
  std::optional<std::pair<Extent, int64_t>> asQuotient(const Extent& extent) const;
  // The size of the last axis that a linear layer demands of the tensor.
  std::optional<int64_t> featuresRead(const Value* tensor) const;

 private:
  const Ranks& ranks() const;
  void forgetSizes() const override;
  // `opaque` if nothing is known of the size.
  Extent ofAxis(const Value* tensor, int64_t axis, Extent opaque) const;
  // For a tensor of unknown rank: the size of an axis that counts from the last one.
  std::optional<int64_t> behind(const Value* tensor, int64_t axis) const;
  Extent findNumber(const Value* value) const;
  bool findNotNegative(const Value* number) const;
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

} // namespace jit_passes
