// Linear layers whose weights have few bits, and a scale for each group of inputs.
#pragma once

#include <optional>

#include "x86/building/reader.h"

namespace jit_passes::x86 {

// Of a node whose weight is in groups, or whose weight alone is quantized; nothing for others. Refuses one whose groups
// no kernel has.
std::optional<Planned> groupedLinear(const RegionReader& reader, Node* node);

} // namespace jit_passes::x86
