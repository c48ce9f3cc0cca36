// Sums that operators with weights compute before they round.
#pragma once

#include "shapes.h"

namespace jit_passes::x86 {

// The operator with weights that includes the sum. Its result is the sum's operand with number `own`.
Operator withSum(Operator weighted, const Operator& sum, size_t own);

// The program with these sums as separate operators, for inputs of these sizes. Nothing if all operands of all sums
// have the size of the result. The result of the operator with weights then is a value of its own. Its 256 codes
// cover a range; outside of it the sum is clipped for any other operand.
std::optional<Program> sumsApart(const Program& program, const std::vector<Sizes>& inputs);

} // namespace jit_passes::x86
