// Which types an operator takes and gives: codes or float32.
#pragma once

#include "declaration.h"

namespace jit_passes::x86 {

// Whether there is a form of it that gives float32; that gives codes.
bool hasFloats(Kind kind);
bool hasCodes(const Operator& op);
// Axes that its result has at least, by those of all values so far: 0 where nothing is known before sizes are. An error
// where it takes or gives fewer than that.
int64_t checkAxes(const Operator& op, const std::vector<int64_t>& axes);
// The grid of a concatenation whose operands have one, but for their ends; nothing for others.
std::optional<Grid> joinedGrid(const Operator& op, const std::vector<Grid>& grids);
// Whether operands and result have types that the kind takes, in as many channels, and a constant the dtype of its own.
bool fitsTypes(const Operator& op, const std::vector<Grid>& grids);

} // namespace jit_passes::x86
