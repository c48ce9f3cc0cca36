// Rules for operators that models write as several.
#pragma once

#include "rewriting/rewriter.h"

namespace jit_passes {

// Root-mean-square norms.
const Rules& rulesOfNorms();

} // namespace jit_passes
