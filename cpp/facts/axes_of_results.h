// The functions in the table of operators that give the number of axes of a result. Nothing if the facts are not
// enough for an answer.
#pragma once

#include <c10/util/SmallVector.h>

#include "axis_facts.h"

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

using Axes = std::optional<ResultAxes>;
using AxesFunction = Axes(const Node* node, const AxisFacts& facts);

AxesFunction axesOfPermuted, axesOfSqueezed, axesOfEmbedded, axesOfLinear, axesOfImages, axesOfProduct,
    axesOfAttention, axesOfConcatenated, axesOfFlattened, axesOfUnflattened, axesOfPart, axesOfReduced,
    axesOfBroadcast, axesOfEinsum, axesOfSizes, axesOfOther;

template <int64_t more>
Axes axesOfOperand(const Node* node, const AxisFacts&) {
  return ResultAxes{ResultAxes::As::Most, {mainOperand(node)}, more, {}};
}

template <int64_t axes>
Axes axesAlways(const Node*, const AxisFacts&) {
  return ResultAxes{ResultAxes::As::Number, {}, axes, {}};
}

// The axes of an image, without and with a batch axis, for operators on images; otherwise from 0 axes on.
AxisRange imagesOf(const Node* node);

} // namespace jit_passes
