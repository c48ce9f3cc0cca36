// The number of axes of a tensor, and the questions about it that rows of operators ask.
#pragma once

#include "graph/graph.h"

namespace jit_passes {

constexpr int64_t kMostAxes = 64; // PyTorch's limit

// The fewest and the most axes that a tensor may have.
struct AxisRange {
  int64_t least = 0, most = kMostAxes;

  std::optional<int64_t> exact() const { return least == most ? std::optional(least) : std::nullopt; }
};

// The facts that rows use.
class AxisFacts {
 public:
  virtual AxisRange axes(const Value* tensor) const = 0;
  // The number of elements of a list of sizes.
  virtual std::optional<int64_t> length(const Value* list) const = 0;
  // Whether the squeeze removes an axis, which it does for an axis of size 1 only.
  virtual bool squeezes(const Node* squeeze) const = 0;

 protected:
  ~AxisFacts() = default;
};

} // namespace jit_passes
