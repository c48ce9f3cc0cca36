// Sums of inputs, and their products with zero points, in a form for each level of vector instructions.
#include "grouped_zero_points.h"

#include <algorithm>

#include "avx2.h"
#include "grouped_tile.h"
#include "ops/vectorize.h"
#include "vnni.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kBlockOutputs = GroupedShape::kOutputs;

// Rows of one call; the other parameters are those of addZeroPoints.
using AddToRows = void (*)(
    const GroupedShape& shape, const uint8_t* scales, const int8_t* zero_points, const float* sums, float* a);

void addToRow(
    const GroupedShape& shape, const uint8_t* scales, const int8_t* zero_points, const float* sums,
    float* a) {
  float b[kBlockOutputs] = {};
  for (int64_t g = 0; g < shape.groups(); ++g, scales += shape.groupBytes(), zero_points += kBlockOutputs) {
    const auto* scale = reinterpret_cast<const float*>(scales);
    for (int64_t c = 0; c < kBlockOutputs; ++c) {
      b[c] = __builtin_fmaf(sums[g], -(scale[c] * static_cast<float>(zero_points[c])), b[c]);
    }
  }
  for (int64_t c = 0; c < kBlockOutputs; ++c) {
    a[c] += b[c];
  }
}

#ifdef JIT_PASSES_HAS_AVX2

template <int kRows>
JIT_PASSES_AVX2 void addToRows256(
    const GroupedShape& shape, const uint8_t* scales, const int8_t* zero_points, const float* sums,
    float* a) {
  const int64_t groups = shape.groups();
  __m256 b[kRows][2] = {};
  for (int64_t g = 0; g < groups; ++g, scales += shape.groupBytes(), zero_points += kBlockOutputs) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(zero_points + 8 * h));
      const __m256 zeros = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
      const __m256 offsets =
          _mm256_mul_ps(_mm256_loadu_ps(reinterpret_cast<const float*>(scales) + 8 * h), zeros);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        b[r][h] = _mm256_fnmadd_ps(_mm256_broadcast_ss(sums + r * groups + g), offsets, b[r][h]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 2 * kRows; ++i) {
    _mm256_storeu_ps(a + 8 * i, _mm256_add_ps(_mm256_loadu_ps(a + 8 * i), b[i / 2][i % 2]));
  }
}

#endif
#ifdef JIT_PASSES_HAS_VNNI

template <int kRows>
JIT_PASSES_VNNI void addToRows512(
    const GroupedShape& shape, const uint8_t* scales, const int8_t* zero_points, const float* sums,
    float* a) {
  const int64_t groups = shape.groups();
  __m512 b[kRows] = {};
  for (int64_t g = 0; g < groups; ++g, scales += shape.groupBytes(), zero_points += kBlockOutputs) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(zero_points));
    const __m512 offsets =
        _mm512_mul_ps(_mm512_loadu_ps(scales), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      b[r] = _mm512_fnmadd_ps(_mm512_set1_ps(sums[r * groups + g]), offsets, b[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(a + kBlockOutputs * r, _mm512_add_ps(_mm512_loadu_ps(a + kBlockOutputs * r), b[r]));
  }
}

#endif

// `tiles` has the functions for one row, two rows, and so on.
template <size_t kMost>
void inTilesOfRows(
    const AddToRows (&tiles)[kMost], const GroupedShape& shape, const uint8_t* block,
    const int8_t* zero_points, const float* sums, int64_t rows, float* a) {
  for (int64_t row = 0, count = 0; row < rows; row += count) {
    count = std::min<int64_t>(kMost, rows - row);
    tiles[count - 1](
        shape, block + kGroupedHeader, zero_points, sums + row * shape.groups(), a + row * kBlockOutputs);
  }
}

} // namespace

JIT_PASSES_VECTORIZED void sumGroups(const GroupedShape& shape, const uint8_t* row, float* sums) {
  for (const uint8_t* end = row + shape.inputs; row < end; row += shape.group) {
    int32_t sum = 0;
    for (int64_t i = 0; i < shape.group; ++i) {
      sum += row[i];
    }
    *sums++ = static_cast<float>(sum);
  }
}

JIT_PASSES_VECTORIZED void sumGroups(const GroupedShape& shape, const float* row, float* sums) {
  constexpr int64_t kParts = 8;
  for (const float* end = row + shape.inputs; row < end; row += shape.group) {
    float parts[kParts] = {};
    int64_t i = 0;
    for (; i + kParts <= shape.group; i += kParts) {
      for (int64_t part = 0; part < kParts; ++part) {
        parts[part] += row[i + part];
      }
    }
    for (int64_t part = 0; i < shape.group; ++i, ++part) {
      parts[part] += row[i];
    }
    *sums++ =
        ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7]));
  }
}

void addZeroPoints(
    const GroupedShape& shape, const uint8_t* block, const int8_t* zero_points, const float* sums,
    int64_t rows, float* a, Form form) {
#ifdef JIT_PASSES_HAS_VNNI
  if (form >= Form::Avx512) {
    return inTilesOfRows(
        {addToRows512<1>, addToRows512<2>, addToRows512<3>, addToRows512<4>, addToRows512<5>, addToRows512<6>,
         addToRows512<7>, addToRows512<8>},
        shape, block, zero_points, sums, rows, a);
  }
#endif
#ifdef JIT_PASSES_HAS_AVX2
  if (form >= Form::Avx2) {
    return inTilesOfRows(
        {addToRows256<1>, addToRows256<2>, addToRows256<3>, addToRows256<4>}, shape, block, zero_points, sums,
        rows, a);
  }
#endif
  inTilesOfRows({addToRow}, shape, block, zero_points, sums, rows, a);
}

} // namespace jit_passes::x86
