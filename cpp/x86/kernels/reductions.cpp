// Sums, means, lengths, maxima and minima of float32 over any axes; and cumulative sums along one axis.
#include <algorithm>
#include <cmath>
#include <limits>

#include "floats.h"
#include "plain.h"
#include "vnni.h"

namespace jit_passes::x86 {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A reduction begins with `start`; `add` includes a number, and `join` combines two results.
struct Sum {
  static constexpr float start = 0;
  static float add(float part, float x) { return part + x; }
  static float join(float a, float b) { return a + b; }
};

struct SumOfSquares : Sum {
  static float add(float part, float x) { return __builtin_fmaf(x, x, part); }
};

// The result is NaN if a number is.
struct LargestNumber {
  static constexpr float start = -kInfinity;
  static float add(float part, float x) { return part >= x || part != part ? part : x; }
  static float join(float a, float b) { return add(a, b); }
};

struct SmallestNumber {
  static constexpr float start = kInfinity;
  static float add(float part, float x) { return part <= x || part != part ? part : x; }
  static float join(float a, float b) { return add(a, b); }
};

// Parts into which neighbouring numbers are reduced in turn.
struct alignas(64) Parts {
  float of[kSumParts];
};

template <typename Reduction>
inline __attribute__((always_inline)) void takeIn(const float* x, int64_t count, Parts& parts) {
  int64_t i = 0;
  for (; i + kSumParts <= count; i += kSumParts) {
    for (int64_t j = 0; j < kSumParts; ++j) {
      parts.of[j] = Reduction::add(parts.of[j], x[i + j]);
    }
  }
  for (int64_t j = 0; j < count - i; ++j) {
    parts.of[j] = Reduction::add(parts.of[j], x[i + j]);
  }
}

// Some pixels of a row, with `count` floats each.
struct Row {
  const uint8_t* first;
  int64_t pixels, step, count;
};

template <typename Reduction>
inline __attribute__((always_inline)) void takeRow(const Row& row, Parts& parts) {
  Parts own;
  std::fill_n(own.of, kSumParts, Reduction::start);
  for (int64_t i = 0; i < row.pixels; ++i) {
    takeIn<Reduction>(reinterpret_cast<const float*>(row.first + i * row.step), row.count, own);
  }
  for (int64_t j = 0; j < kSumParts; ++j) {
    parts.of[j] = Reduction::join(parts.of[j], own.of[j]);
  }
}

template <typename Reduction>
inline __attribute__((always_inline)) float together(Parts parts) {
  for (int64_t half = kSumParts / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) {
      parts.of[j] = Reduction::join(parts.of[j], parts.of[j + half]);
    }
  }
  return parts.of[0];
}

// A macro, since a template cannot be compiled for each level of vector instructions.
#define JIT_PASSES_REDUCTION(Reduction)                                                                      \
  JIT_PASSES_VECTORIZED void takeRowInto##Reduction(const Row& row, Parts& parts) {                          \
    takeRow<Reduction>(row, parts);                                                                          \
  }                                                                                                          \
  JIT_PASSES_VECTORIZED float together##Reduction(const Parts& parts) { return together<Reduction>(parts); } \
  JIT_PASSES_VECTORIZED void rows##Reduction(Row row, int64_t count, float* results) {                       \
    for (int64_t i = 0; i < count; ++i, row.first += row.step) {                                             \
      Parts parts;                                                                                           \
      std::fill_n(parts.of, kSumParts, Reduction::start);                                                    \
      takeRow<Reduction>(row, parts);                                                                        \
      results[i] = together<Reduction>(parts);                                                               \
    }                                                                                                        \
  }
JIT_PASSES_REDUCTION(Sum)
JIT_PASSES_REDUCTION(SumOfSquares)
JIT_PASSES_REDUCTION(LargestNumber)
JIT_PASSES_REDUCTION(SmallestNumber)
#undef JIT_PASSES_REDUCTION

#ifdef JIT_PASSES_HAS_VNNI

// Sixteen numbers at a time.
template <typename Reduction>
struct SixteenOf;

template <>
struct SixteenOf<Sum> {
  JIT_PASSES_VNNI_INLINE static __m512 add(__m512 part, __m512 x) { return _mm512_add_ps(part, x); }
  JIT_PASSES_VNNI_INLINE static __m512 join(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
};

template <>
struct SixteenOf<SumOfSquares> : SixteenOf<Sum> {
  JIT_PASSES_VNNI_INLINE static __m512 add(__m512 part, __m512 x) { return _mm512_fmadd_ps(x, x, part); }
};

template <int kOrder>
struct Extremes {
  JIT_PASSES_VNNI_INLINE static __m512 add(__m512 part, __m512 x) {
    const __mmask16 is_nan = _mm512_cmp_ps_mask(part, part, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(part, x, kOrder) | is_nan, part);
  }
  JIT_PASSES_VNNI_INLINE static __m512 join(__m512 a, __m512 b) { return add(a, b); }
};

template <>
struct SixteenOf<LargestNumber> : Extremes<_CMP_GE_OQ> {};
template <>
struct SixteenOf<SmallestNumber> : Extremes<_CMP_LE_OQ> {};

// Combines the parts in the order of `together`.
template <typename Reduction>
JIT_PASSES_VNNI_INLINE float togetherVnni(const __m512 (&parts)[4]) {
  using Of = SixteenOf<Reduction>;
  __m512 all = Of::join(Of::join(parts[0], parts[2]), Of::join(parts[1], parts[3]));
  all = Of::join(all, _mm512_shuffle_f32x4(all, all, 0x4E));
  all = Of::join(all, _mm512_shuffle_f32x4(all, all, 0xB1));
  all = Of::join(all, _mm512_permute_ps(all, 0x4E));
  return _mm512_cvtss_f32(Of::join(all, _mm512_permute_ps(all, 0xB1)));
}

template <typename Reduction>
JIT_PASSES_VNNI void rowsVnni(Row row, int64_t count, float* results) {
  const int64_t whole = row.count / kSumParts * kSumParts;
  const uint64_t lanes = firstLanes(row.count - whole);
  for (int64_t i = 0; i < count; ++i, row.first += row.step) {
    __m512 parts[4];
    std::fill_n(parts, 4, _mm512_set1_ps(Reduction::start));
    for (int64_t pixel = 0; pixel < row.pixels; ++pixel) {
      const auto* x = reinterpret_cast<const float*>(row.first + pixel * row.step);
      for (int64_t c = 0; c < whole; c += kSumParts) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          parts[j] = SixteenOf<Reduction>::add(parts[j], _mm512_loadu_ps(x + c + 16 * j));
        }
      }
      if (lanes == 0) {
        continue;
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const auto some = static_cast<__mmask16>(lanes >> (16 * j));
        const __m512 rest = _mm512_maskz_loadu_ps(some, x + whole + 16 * j);
        parts[j] = _mm512_mask_mov_ps(parts[j], some, SixteenOf<Reduction>::add(parts[j], rest));
      }
    }
    results[i] = togetherVnni<Reduction>(parts);
  }
}

#define JIT_PASSES_ROWS(Reduction) rows##Reduction, rowsVnni<Reduction>
#else
#define JIT_PASSES_ROWS(Reduction) rows##Reduction, rows##Reduction
#endif

struct Functions {
  float start;
  void (*take)(const Row&, Parts&);
  float (*together)(const Parts&);
  // Reduces the pixels of one row into each result. Several results have one pixel each.
  void (*rows)(Row, int64_t, float*);
  void (*rows_vnni)(Row, int64_t, float*);
};

Functions functionsOf(ReduceFloats::Which which) {
  switch (which) {
    case ReduceFloats::Length:
      return {
          SumOfSquares::start, takeRowIntoSumOfSquares, togetherSumOfSquares, JIT_PASSES_ROWS(SumOfSquares)};
    case ReduceFloats::Largest:
      return {
          LargestNumber::start, takeRowIntoLargestNumber, togetherLargestNumber,
          JIT_PASSES_ROWS(LargestNumber)};
    case ReduceFloats::Smallest:
      return {
          SmallestNumber::start, takeRowIntoSmallestNumber, togetherSmallestNumber,
          JIT_PASSES_ROWS(SmallestNumber)};
    default: return {Sum::start, takeRowIntoSum, togetherSum, JIT_PASSES_ROWS(Sum)};
  }
}
#undef JIT_PASSES_ROWS

} // namespace

int64_t ReduceFloats::items(const Image& out) const {
  return out.rows() * ((out.channels + kSumParts - 1) / kSumParts);
}

void ReduceFloats::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const Functions functions = functionsOf(which);
  const auto takeRows = form >= Form::Avx512 ? functions.rows_vnni : functions.rows;
  const auto reach = [](int64_t from, int64_t to) { return to == 1 ? from : 1; };
  const int64_t images = reach(in.images, out.images), planes = reach(in.depth, out.depth);
  const int64_t rows = reach(in.height, out.height), pixels = reach(in.width, out.width);
  const bool whole = out.channels == 1; // channels are reduced too
  const int64_t blocks = (out.channels + kSumParts - 1) / kSumParts;
  const auto count = static_cast<float>(images * planes * rows * pixels * (whole ? in.channels : 1));
  const auto result = [&](float x) { return which == Mean ? x / count : which == Length ? std::sqrt(x) : x; };
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % blocks * kSumParts, row = item / blocks;
    const int64_t y = row % out.height, z = row / out.height % out.depth, n = row / out.height / out.depth;
    const int64_t channels = whole ? in.channels : std::min(kSumParts, out.channels - first);
    if (whole && images * planes * rows == 1) {
      for (int64_t x = 0; x < out.width; x += kSumParts) {
        float results[kSumParts];
        const int64_t some = std::min(kSumParts, out.width - x);
        takeRows({in.at(n, z, y, x), pixels, in.pixel, channels}, some, results);
        for (int64_t i = 0; i < some; ++i) {
          *reinterpret_cast<float*>(out.at(n, z, y, x + i)) = result(results[i]);
        }
      }
      continue;
    }
    for (int64_t x = 0; x < out.width; ++x) {
      auto* to = reinterpret_cast<float*>(out.at(n, z, y, x)) + first;
      Parts parts;
      std::fill_n(parts.of, kSumParts, functions.start);
      for (int64_t i = 0; i < images * planes * rows; ++i) {
        const uint8_t* from = in.at(n + i / rows / planes, z + i / rows % planes, y + i % rows, x);
        functions.take({from + first * int64_t(sizeof(float)), pixels, in.pixel, channels}, parts);
      }
      if (whole) {
        *to = result(functions.together(parts));
      } else {
        std::transform(parts.of, parts.of + channels, to, result);
      }
    }
  }
}

void CumulateFloats::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  constexpr int64_t kTogether = 8; // pixels at a time, since each pixel's sum is a chain
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t x = 0; x < out.width; x += kTogether) {
      const int64_t pixels = std::min(kTogether, out.width - x);
      const uint8_t* from = in.rowAt(row) + x * in.pixel;
      uint8_t* to = out.rowAt(row) + x * out.pixel;
      double sums[kTogether] = {};
      for (int64_t c = 0; c < out.channels; ++c) {
        for (int64_t i = 0; i < pixels; ++i) {
          sums[i] += reinterpret_cast<const float*>(from + i * in.pixel)[c];
          reinterpret_cast<float*>(to + i * out.pixel)[c] = static_cast<float>(sums[i]);
        }
      }
    }
  }
}

} // namespace jit_passes::x86
