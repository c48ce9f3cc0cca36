// Kernels that serve operators of any signature.
#pragma once

#include "graph/registry.h"

namespace jit_passes {

// The gradient of jit_passes::NAME, which has one result, by the operator NAME_backward: that takes the
// gradient of the result and then the first operands of NAME, and returns the gradients of its tensors. These
// come first among the operands.
torch::CppFunction byBackward();

// For meta tensors: a result like the first operand, or several like those behind the first, a gradient.
// Sizes may be symbols, which cannot be compared.
torch::CppFunction likeOperands();

// For meta tensors: an operator that only writes.
torch::CppFunction doNothing();

} // namespace jit_passes
