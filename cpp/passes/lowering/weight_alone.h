// Operators whose weight is quantized while their input stays in float.
#pragma once

#include "graph/graph.h"

namespace jit_passes {

// Which operand of a linear, embedding or embedding_bag is dequantized from constant codes, where its input
// is not dequantized, nor rearranged from what is; nothing for other nodes.
std::optional<size_t> weightAlone(const Node* node);

} // namespace jit_passes
