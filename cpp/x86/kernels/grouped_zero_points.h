// The part of zero points in the results of grouped.h: a sum of inputs for each row and group, times scales and zero
// points.
#pragma once

#include "grouped.h"

namespace jit_passes::x86 {

// Writes the sums of the groups of a row. Sums of codes are exact: a row of kMostProducts codes adds up to less than
// 2^24.
void sumGroups(const GroupedShape& shape, const uint8_t* row, float* sums);
void sumGroups(const GroupedShape& shape, const float* row, float* sums);

// Adds b of grouped.h to `a`, [rows][16 outputs], for a block of outputs and its zero points, [groups][16 outputs].
// `sums` are [rows][groups].
void addZeroPoints(
    const GroupedShape& shape, const uint8_t* block, const int8_t* zero_points, const float* sums,
    int64_t rows, float* a, Form form);

} // namespace jit_passes::x86
