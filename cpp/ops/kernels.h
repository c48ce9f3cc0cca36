// Kernels for operators of any signature.
#pragma once

#include "graph/registry.h"

namespace jit_passes {

// The gradient of jit_passes::NAME, which has one result, by the operator NAME_backward. NAME_backward takes the
// gradient of the result and the first operands of NAME, and returns the gradients of these. Tensors must come first
// among the operands.
torch::CppFunction byBackward();

// For meta tensors: one result like the first operand; or several results like the operands after the first one,
// which is a gradient. Sizes may be symbols, which cannot be compared.
torch::CppFunction likeOperands();

// For meta tensors, for an operator that only writes.
torch::CppFunction doNothing();

} // namespace jit_passes
