// The sizes in the lists of reshape, unflatten and expand. An element -1 leaves a size open.
//
//   %y = aten::unflatten(%x, 1, [-1, 2, 8])      axis 1 has the size of axis 1 of %x, divided by 2 * 8
//   %z = aten::reshape(%x, [%n, 4])              axis 0 has %n elements, or the quotient by 4 if %n is -1
//   %w = aten::reshape(%x, [%n, -1, 4])          axis 0 has %n elements: only one size may be open
#pragma once

#include "sizes_of_results.h"

namespace jit_passes {

// The sizes in the list of a reshape, unflatten or expand. An integer that may be -1 at run time becomes open if the
// other sizes determine it, else the size of the result's axis. So every integer that is left is a size for certain.
std::optional<std::vector<Extent>> sizesGiven(const Value* tensor, const SizeFacts& shapes);
// The sizes in a list, whose integers may be -1.
std::optional<std::vector<Extent>> sizesIn(const Value* list, const SizeFacts& shapes);

// For reshape, unflatten, expand and flatten.
SizeFunction sizeOfReshaped;

} // namespace jit_passes
