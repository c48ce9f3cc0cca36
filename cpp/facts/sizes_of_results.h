// The functions in the table of operators that give the size of an axis of a result. Axes count from the first. If
// the rank of the result is not known, they may count from the last one, which is -1. Nothing if the size is not
// known.
#pragma once

#include "size_facts.h"

namespace jit_passes {

using Size = std::optional<Extent>;
using SizeFunction = Size(const Value* result, int64_t axis, const SizeFacts& shapes);

SizeFunction sizeOfOperand, sizeOfTransposed, sizeOfPermuted, sizeOfUnsqueezed, sizeOfSqueezed,
    sizeOfSelected, sizeOfSlice, sizeOfPart, sizeOfConcatenated, sizeOfLayer, sizeOfEmbedded, sizeOfProduct,
    sizeOfBroadcast, sizeOfEinsum, sizeOfCount, sizeOfMade, sizeOfSteps, sizeOfOther;

} // namespace jit_passes
