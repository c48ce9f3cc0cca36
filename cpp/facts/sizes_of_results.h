// The functions in the table of operators that give the size of an axis of a result. Axes count from the first.
// Nothing if the size is not known.
#pragma once

#include "shapes.h"

namespace jit_passes {

using Size = std::optional<Extent>;
using SizeFunction = Size(const Value* result, int64_t axis, const Shapes& shapes);

SizeFunction sizeOfOperand, sizeOfTransposed, sizeOfPermuted, sizeOfUnsqueezed, sizeOfSqueezed,
    sizeOfSelected, sizeOfSlice, sizeOfPart, sizeOfConcatenated, sizeOfLayer, sizeOfEmbedded, sizeOfProduct,
    sizeOfBroadcast, sizeOfEinsum, sizeOfCount, sizeOfMade, sizeOfSteps, sizeOfReshaped;

} // namespace jit_passes
