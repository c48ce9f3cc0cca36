// Sums that operators with weights compute before they round.
#pragma once

#include "shapes.h"

namespace jit_passes::x86 {

// Whether such a sum, in the same block, is all that reads an operator's result.
bool isSummed(const torch::jit::Node* node, const Operator& op);
// The operator with weights, and the sum of which its result is the operand with the number `own`.
Operator withSum(Operator weighted, const Operator& sum, size_t own);

// The program with such sums as operators of their own, for inputs of these sizes; nothing where all operands of all
// sums have the size of the result. The result of the operator with weights has a value of its own then. Its 256 codes
// go over the range beyond which the sum is clipped, whatever the other operand is.
std::optional<Program> sumsApart(const Program& program, const std::vector<Sizes>& inputs);

} // namespace jit_passes::x86
