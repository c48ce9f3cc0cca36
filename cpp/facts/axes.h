// How many axes tensors have, and of which sizes, by the operators that make and read them: one row for each operator.
#pragma once

#include <c10/util/SmallVector.h>

#include "extent.h"

namespace jit_passes {

class Shapes;

constexpr int64_t kMostAxes = 64; // of a tensor of PyTorch's

// The fewest and the most axes that a tensor may have.
struct AxisRange {
  int64_t least = 0, most = kMostAxes;

  std::optional<int64_t> exact() const { return least == most ? std::optional(least) : std::nullopt; }
};

// The axes of a result, by the axes of the tensors that it is made of.
struct ResultAxes {
  enum class As {
    Number, // `more` axes, whatever goes in
    Most,   // as many as the tensor that has most, and `more`
    Each,   // as many as each tensor has, and `more`
  };

  As as = As::Number;
  c10::SmallVector<const Value*, 3> of;
  int64_t more = 0;
  AxisRange images; // of operators that take images with and without a batch axis
};

// Facts that rows ask for.
class AxisFacts {
 public:
  virtual AxisRange axes(const Value* tensor) const = 0;
  // The number of elements of a list of sizes.
  virtual std::optional<int64_t> length(const Value* list) const = 0;
  // Whether it takes an axis of size 1 away.
  virtual bool squeezes(const Node* squeeze) const = 0;

 protected:
  ~AxisFacts() = default;
};

// Nothing where the operator has no row, or where the answer needs more than the facts tell.
std::optional<ResultAxes> axesOfResult(const Value* result, const AxisFacts& facts);

// The size of an axis of a result, counted from the first; nothing likewise.
std::optional<Extent> sizeOfResult(const Value* result, int64_t axis, const Shapes& shapes);

// The axes that the row comes to.
AxisRange rangeOf(const ResultAxes& row, const AxisFacts& facts);

// The axes that a reader demands of the tensor, whatever it makes of it.
AxisRange axesOfOperand(const Use& use);

} // namespace jit_passes
