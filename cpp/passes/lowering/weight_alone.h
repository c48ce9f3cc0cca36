// Operators whose weight is quantized while their input stays in float.
#pragma once

#include "graph/graph.h"

namespace jit_passes {

// The number of the operand of a linear, embedding or embedding_bag that is dequantized from constant codes, if its
// input is not dequantized, directly or rearranged. Nothing for other nodes.
std::optional<size_t> weightAlone(const Node* node);

} // namespace jit_passes
