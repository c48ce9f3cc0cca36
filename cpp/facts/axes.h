// A table with one row for each operator: the number of axes of its results, their sizes, and the axes that it
// demands of its operands.
#pragma once

#include <c10/util/SmallVector.h>

#include "size_facts.h"

namespace jit_passes {

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

// Nothing if the operator has no row, or the facts are not enough for an answer.
std::optional<ResultAxes> axesOfResult(const Value* result, const AxisFacts& facts);

// The size of an axis of a result, counted from the first, or nothing.
std::optional<Extent> sizeOfResult(const Value* result, int64_t axis, const SizeFacts& facts);

// The range that the row gives with these facts.
AxisRange rangeOf(const ResultAxes& row, const AxisFacts& facts);

// The axes that a reader demands of the tensor.
AxisRange axesOfOperand(const Use& use);

} // namespace jit_passes
