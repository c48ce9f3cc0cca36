// The rank of a reshaped tensor, from the number of its elements.
//
//   %y = aten::linear(%x, %weight)
//   %z = aten::reshape(%y, [%x.size(0), %x.size(1) * 8, %x.size(2) // 8])
//
// %z has as many elements as %y, and the product of its sizes is at most that of the axes 0 to 2 of %x. If %x had
// another axis, %y would have more elements than that, so %x has rank 3. Traced models need this: they ask for one
// size after the other, while scripted models unpack all sizes and so tell the rank.
#pragma once

#include "size_facts.h"

namespace jit_passes {

// The tensor whose sizes the reshape asks for, and its rank.
std::optional<std::pair<const Value*, int64_t>> countedIn(const Node* reshape, const SizeFacts& shapes);

} // namespace jit_passes
