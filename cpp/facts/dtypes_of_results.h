// The functions in the table of operators that give the dtype of a result. Nothing if the operator does not tell.
#pragma once

#include <c10/util/SmallVector.h>

#include "graph/graph.h"

namespace jit_passes {

// The dtype of a result, in terms of the dtypes of operands.
struct ResultDtype {
  enum class As {
    Given,    // `dtype`, for any operands; none if the model computes it
    Same,     // as the one operand
    Promoted, // as the floating ones among the operands; operands that are all whole numbers tell nothing
  };

  As as = As::Given;
  c10::SmallVector<const Value*, 3> of = {};
  std::optional<at::ScalarType> dtype = {};
  bool floats = false; // floating, whatever is known of the operands
};

using DtypeFunction = std::optional<ResultDtype>(const Value* result);

DtypeFunction dtypeOfOperand, dtypeOfOther, dtypeOfCast, dtypeOfPart, dtypeOfWeight, dtypeOfTensors,
    dtypeOfAttention, dtypeOfElements, dtypeOfStates, dtypeOfKind, floatingDtype;

// For operators that give floats for whole numbers too, or refuse whole numbers.
template <DtypeFunction* function>
std::optional<ResultDtype> inFloats(const Value* result) {
  auto found = function(result);
  if (found) {
    found->floats = true;
  }
  return found;
}

template <at::ScalarType dtype>
std::optional<ResultDtype> dtypeIs(const Value*) {
  return ResultDtype{.dtype = dtype};
}

// The dtype that an operand `dtype` asks for; nothing if there is no such operand, or if it is None.
std::optional<ResultDtype> dtypeAsked(const Value* result);

} // namespace jit_passes
