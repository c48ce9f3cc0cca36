// Some rows times a block of 16 outputs: the part of grouped.h that each form implements.
#pragma once

#include <c10/util/FunctionRef.h>

#include <algorithm>

#include "grouped.h"

namespace jit_passes::x86 {

// The most rows of a tile: the rows that share decoded weights.
template <typename T>
constexpr int64_t kGroupedRows = 128;
template <>
inline constexpr int64_t kGroupedRows<float> = 64;
constexpr int64_t kGroupedHeader = 2 * GroupedShape::kOutputs * int64_t(sizeof(float));

template <typename T>
struct GroupedRows {
  const T* row[kGroupedRows<T>];
  int64_t count;

  // At most `most` rows, from row `first` on.
  GroupedRows from(int64_t first, int64_t most) const {
    GroupedRows some{{}, std::min(most, count - first)};
    std::copy_n(row + first, some.count, some.row);
    return some;
  }
};

// Steps of a group whose weights are decoded to float32: their place and number, and whether they include the first
// and the last step. Places are [steps][32 inputs][16 outputs], of one block after the other.
struct DecodedSteps {
  const float* weights;
  int64_t steps;
  bool first, last;
};

// Writes the sums `a` of each row, [rows][16], or of two blocks, one after the other.
template <typename T>
using GroupedSums =
    void (*)(const GroupedShape& shape, const uint8_t* block, const GroupedRows<T>& rows, float* a);

// Is called when the sums of `count` rows, from row `first` on, are there. Results are then written while products of
// further rows are computed.
using RowsDone = c10::function_ref<void(int64_t first, int64_t count)>;

template <typename T>
using GroupedTile = void (*)(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<T>& rows, float* a, RowsDone done);

// Computes the sums of all rows. `sums` has the functions for one row, two rows, and so on; the largest is used first.
template <typename T, size_t kMost>
void inTiles(
    const GroupedSums<T> (&sums)[kMost], const GroupedShape& shape, const uint8_t* block,
    const GroupedRows<T>& rows, float* a, RowsDone done) {
  for (int64_t r = 0; r < rows.count; r += kMost, a += kMost * GroupedShape::kOutputs) {
    const auto some = rows.from(r, kMost);
    sums[some.count - 1](shape, block, some, a);
    done(r, some.count);
  }
}

void groupedCodesAvx2(const GroupedShape&, const uint8_t*, const GroupedRows<uint8_t>&, float*, RowsDone);
void groupedFloatsAvx2(const GroupedShape&, const uint8_t*, const GroupedRows<float>&, float*, RowsDone);
void groupedCodesVnni(const GroupedShape&, const uint8_t*, const GroupedRows<uint8_t>&, float*, RowsDone);
// By AMX if there are enough rows, else by groupedCodesVnni.
void groupedCodesAmx(const GroupedShape&, const uint8_t*, const GroupedRows<uint8_t>&, float*, RowsDone);
void groupedFloatsVnni(const GroupedShape&, const uint8_t*, const GroupedRows<float>&, float*, RowsDone);
// Two blocks at a time. Decoding weights for two blocks pays only with several rows.
void groupedPairOfCodesVnni(
    const GroupedShape&, const uint8_t*, const GroupedRows<uint8_t>&, float*, RowsDone);
void groupedPairOfFloatsVnni(
    const GroupedShape&, const uint8_t*, const GroupedRows<float>&, float*, RowsDone);
constexpr int64_t kFewToDecode512 = 8;
// Steps of codes that are decoded at a time, to stay in the first cache.
constexpr int64_t kCodesAhead512 = 16;

// Whether rows of codes can share decoded weights: whole groups are decoded.
inline bool sharesDecoded512(const GroupedShape& shape) {
  return shape.bits == 8 || shape.steps() <= kCodesAhead512;
}

// Whether a tile of decoded weights fetches the rows of the next tile into the first cache: if all rows do not stay in
// the second cache. Large rows are often a multiple of 4 KB apart, so the processor does not fetch ahead itself.
inline bool fetchesRows(const GroupedShape& shape, int64_t rows) {
  constexpr int64_t kStays = 1 << 19; // bytes
  return rows * shape.inputs * int64_t(sizeof(float)) >= kStays;
}

// The inputs of a step. The last step of a row may have fewer than 32: the others are 0, and memory after the row is
// not read.
template <int kRows>
struct StepOfFloats {
  const float* row[kRows];
  float filled[kRows][GroupedShape::kInputs];

  void at(const GroupedRows<float>& rows, int64_t first, int64_t count) {
    for (int r = 0; r < rows.count; ++r) {
      row[r] = rows.row[r] + first;
      if (count < GroupedShape::kInputs) {
        std::fill(std::copy_n(row[r], count, filled[r]), filled[r] + GroupedShape::kInputs, 0.0F);
        row[r] = filled[r];
      }
    }
  }
};

} // namespace jit_passes::x86
