// Operators for which PyTorch's quantized engine FBGEMM has kernels.
#pragma once

#include "graph/jit.h"

namespace jit_passes {

// Whether FBGEMM has a fast kernel for a convolution in groups: depthwise, with a multiple of 8 channels and windows
// of 3 or 5 in each direction, padded to keep the size (fbgemm/FbgemmI8DepthwiseAvx2.h); or with few groups. Other
// convolutions in groups take 100 times as long as in float.
bool fastOnFbgemm(
    at::IntArrayRef weight, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
    int64_t groups);

} // namespace jit_passes
