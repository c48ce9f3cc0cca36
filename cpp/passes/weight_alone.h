// Operators whose weight is quantized while their input stays in float.
#pragma once

#include "core/graph.h"

namespace jit_passes {

// Which operand of a linear, embedding or embedding_bag is dequantized from constant codes, where its other
// operands are not dequantized; nothing for other nodes.
std::optional<size_t> weightAlone(const Node* node);

} // namespace jit_passes
