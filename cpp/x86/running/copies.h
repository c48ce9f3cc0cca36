// Codes that go elsewhere, where no kernel is worth while.
#pragma once

#include "graph/jit.h"
#include "x86/kernels/floats.h"

namespace jit_passes::x86 {

// y = x at `offset` in images, planes, rows and columns, and `zero` around it. Items: rows.
void padRows(
    const Image& in, const std::array<int64_t, 4>& offset, uint8_t zero, const Image& out, int64_t begin,
    int64_t end);

// The element of an axis that each of the result is nearest to, as PyTorch computes it in float32: by the corners of
// pixels. Its kernels for two spatial axes, which are `flat`, do not look at the factor where the size stays or doubles.
std::vector<int64_t> nearest(int64_t in, int64_t out, std::optional<double> factor, bool flat);
// By the centres of pixels: the mode `nearest-exact`.
std::vector<int64_t> nearestExact(int64_t in, int64_t out, std::optional<double> factor);

// The two elements of an axis between which each of the result lies, and the share of the second, as PyTorch computes
// them in float32.
std::vector<Blend::Taps> blendedTaps(
    int64_t in, int64_t out, std::optional<double> factor, bool aligns_corners);
// The four, and their shares, likewise.
std::vector<CubicFloats::Taps> cubicTaps(
    int64_t in, int64_t out, std::optional<double> factor, bool aligns_corners);

} // namespace jit_passes::x86
