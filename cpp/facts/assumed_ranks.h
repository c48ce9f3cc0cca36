// The sides of branches that a graph takes if some of its tensors have an assumed number of axes.
#pragma once

#include "shapes.h"

namespace jit_passes {

// An assumption. Answers are kept, so the graph must stay as it is.
class AssumedRanks final : public AxisFacts {
 public:
  AssumedRanks(const Shapes& shapes, std::unordered_map<const Value*, int64_t> ranks)
      : shapes_(shapes), ranks_(ranks.begin(), ranks.end()) {}

  std::optional<int64_t> rank(const Value* tensor) const;
  // A number, or a truth value as 0 or 1, if ranks and constants alone determine it.
  std::optional<int64_t> number(const Value* value) const;
  // Whether a node of the block itself raises an error for certain.
  bool raises(const Block* block) const;

  AxisRange axes(const Value* tensor) const override;
  std::optional<int64_t> length(const Value* list) const override;
  bool squeezes(const Node* squeeze) const override;

 private:
  using Answers = std::unordered_map<const Value*, std::optional<int64_t>>;

  std::optional<int64_t> remember(
      Answers& answers, const Value* value,
      std::optional<int64_t> (AssumedRanks::*find)(const Value*) const) const;
  std::optional<int64_t> findRank(const Value* tensor) const;
  std::optional<int64_t> findNumber(const Value* value) const;
  // The result of a branch, if the assumption decides which side runs, or if both sides agree.
  std::optional<int64_t> ofBranch(
      const Value* output, const std::function<std::optional<int64_t>(const Value*)>& ofSide) const;

  const Shapes& shapes_;
  mutable Answers ranks_, numbers_;
};

} // namespace jit_passes
