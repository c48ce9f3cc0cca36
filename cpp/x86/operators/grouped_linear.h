// Linear layers with weights of few bits and a scale for each group of inputs.
#pragma once

#include <optional>

#include "x86/building/reader.h"

namespace jit_passes::x86 {

// The operator for a node whose weight is in groups, or whose weight alone is quantized; nothing for other nodes.
// Refuses groups that no kernel supports.
std::optional<Planned> groupedLinear(const RegionReader& reader, Node* node);

} // namespace jit_passes::x86
