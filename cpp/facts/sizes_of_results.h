// The size of an axis of a result, counted from the first, for the rows of operators. Nothing where it is not known.
#pragma once

#include "shapes.h"

namespace jit_passes {

using Size = std::optional<Extent>;
using SizeFunction = Size(const Value* result, int64_t axis, const Shapes& shapes);

SizeFunction sizeOfOperand, sizeOfTransposed, sizeOfPermuted, sizeOfUnsqueezed, sizeOfSqueezed,
    sizeOfSelected, sizeOfSlice, sizeOfPart, sizeOfConcatenated, sizeOfLayer, sizeOfEmbedded, sizeOfProduct,
    sizeOfBroadcast, sizeOfEinsum, sizeOfCount, sizeOfMade, sizeOfSteps, sizeOfReshaped;

} // namespace jit_passes
