// The types that an operator takes and gives: codes or float32.
#pragma once

#include "declaration.h"

namespace jit_passes::x86 {

// Whether the kind has a form that gives float32, or codes.
bool hasFloats(Kind kind);
bool hasCodes(const Operator& op);
// Refuses an operator that "reads", or "gives", more axes than a plan has for it.
void refuseAxes(const char* verb, int64_t axes, int64_t most);
// The fewest axes of the operator's result, from the fewest axes of all values so far; 0 if nothing is known before
// sizes are. Refuses an operator that takes or gives tensors with fewer axes only.
int64_t checkAxes(const Operator& op, const std::vector<int64_t>& axes);
// The grid of a concatenation whose operands have equal grids, except for their ends; nothing otherwise.
std::optional<Grid> joinedGrid(const Operator& op, const std::vector<Grid>& grids);
// Whether the kind takes these types of operands and result, and a constant has the dtype of its tensor.
bool fitsTypes(const Operator& op, const std::vector<Grid>& grids);

} // namespace jit_passes::x86
