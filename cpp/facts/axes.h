// A table with one row for each operator: the number of axes of its results, their sizes, and the axes that it
// demands of its operands.
#pragma once

#include <c10/util/SmallVector.h>

#include "extent.h"

namespace jit_passes {

class Shapes;

constexpr int64_t kMostAxes = 64; // PyTorch's limit

// The fewest and the most axes that a tensor may have.
struct AxisRange {
  int64_t least = 0, most = kMostAxes;

  std::optional<int64_t> exact() const { return least == most ? std::optional(least) : std::nullopt; }
};

// The number of axes of a result, in terms of the axes of operands.
struct ResultAxes {
  enum class As {
    Number, // `more` axes, for any operands
    Most,   // as many as the tensor with the most axes, plus `more`
    Each,   // as many as each of the tensors, plus `more`
  };

  As as = As::Number;
  c10::SmallVector<const Value*, 3> of;
  int64_t more = 0;
  AxisRange images; // for operators that take images with and without a batch axis
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

// Nothing if the operator has no row, or the facts are not enough for an answer.
std::optional<ResultAxes> axesOfResult(const Value* result, const AxisFacts& facts);

// The size of an axis of a result, counted from the first, or nothing.
std::optional<Extent> sizeOfResult(const Value* result, int64_t axis, const Shapes& shapes);

// The range that the row gives with these facts.
AxisRange rangeOf(const ResultAxes& row, const AxisFacts& facts);

// The axes that a reader demands of the tensor.
AxisRange axesOfOperand(const Use& use);

} // namespace jit_passes
