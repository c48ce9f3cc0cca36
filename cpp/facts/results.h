// A table with one row for each operator: the number of axes of its results, their sizes and their dtype, and the
// axes that it demands of its operands.
#pragma once

#include "axes_of_results.h"
#include "dtypes_of_results.h"
#include "size_facts.h"

namespace jit_passes {

// Nothing if the operator has no row, or the facts are not enough for an answer.
std::optional<ResultAxes> axesOfResult(const Value* result, const AxisFacts& facts);

// The size of an axis of a result, counted from the first, or nothing.
std::optional<Extent> sizeOfResult(const Value* result, int64_t axis, const SizeFacts& facts);

// The dtype of a result, or nothing.
std::optional<ResultDtype> dtypeOfResult(const Value* result);

// The range that the row gives with these facts.
AxisRange rangeOf(const ResultAxes& row, const AxisFacts& facts);

// The axes that a reader demands of the tensor.
AxisRange axesOfOperand(const Use& use);

} // namespace jit_passes
