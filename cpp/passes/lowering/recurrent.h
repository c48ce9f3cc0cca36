// Recurrent layers whose input is quantized as the model runs.
#pragma once

#include "graph/registry.h"

namespace jit_passes {

// Writes plain layers (nn.RNN) as loops of linears, which lower_recurrent does where it is done with LSTM and GRU.
bool expandRecurrent(PassContext& context);

} // namespace jit_passes
