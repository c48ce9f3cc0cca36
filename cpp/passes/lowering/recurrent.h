// Recurrent layers whose input is quantized at run time.
#pragma once

#include "graph/registry.h"

namespace jit_passes {

// Replaces plain layers (nn.RNN) by loops of linears: the last step of the pass lower_recurrent.
bool expandRecurrent(PassContext& context);

} // namespace jit_passes
