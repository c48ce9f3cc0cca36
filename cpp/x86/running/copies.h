// Copies and positions for operators without kernels of their own.
#pragma once

#include "graph/jit.h"
#include "x86/kernels/floats.h"

namespace jit_passes::x86 {

// y = x at `offset` in images, planes, rows and columns, and `zero` around it. Items: rows.
void padRows(
    const Image& in, const std::array<int64_t, 4>& offset, uint8_t zero, const Image& out, int64_t begin,
    int64_t end);

// For each element of the result along an axis, the nearest element of the operand by the corners of pixels,
// computed in float32 like PyTorch. `flat`: two spatial axes, for which PyTorch's kernels ignore the factor if the
// size stays or doubles.
std::vector<int64_t> nearest(int64_t in, int64_t out, std::optional<double> factor, bool flat);
// The nearest elements by the centres of pixels, for the mode `nearest-exact`.
std::vector<int64_t> nearestExact(int64_t in, int64_t out, std::optional<double> factor);

// For each element of the result along an axis, the two elements of the operand on both sides, and the weight of the
// second one, computed in float32 like PyTorch.
std::vector<Blend::Taps> blendedTaps(
    int64_t in, int64_t out, std::optional<double> factor, bool aligns_corners);
// The four elements around each element of the result, and their weights.
std::vector<CubicFloats::Taps> cubicTaps(
    int64_t in, int64_t out, std::optional<double> factor, bool aligns_corners);

} // namespace jit_passes::x86
