// Sums, means, lengths, largest and smallest numbers of float32, over any axes; and sums as they grow along one.
#include <algorithm>
#include <cmath>
#include <limits>

#include "floats.h"
#include "plain.h"

namespace jit_passes::x86 {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// From `start` on, `add` takes a number in, and `join` two results.
struct Sum {
  static constexpr float start = 0;
  static float add(float part, float x) { return part + x; }
  static float join(float a, float b) { return a + b; }
};

struct SumOfSquares : Sum {
  static float add(float part, float x) { return __builtin_fmaf(x, x, part); }
};

// A NaN is the result.
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

// Parts that numbers side by side are taken into, in turn.
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

// Some pixels in a row, of which each has `count` floats.
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

// No template is compiled for each level of vector units, so these are functions.
#define JIT_PASSES_REDUCTION(Reduction)                                                                      \
  JIT_PASSES_VECTORIZED void takeRowInto##Reduction(const Row& row, Parts& parts) {                          \
    takeRow<Reduction>(row, parts);                                                                          \
  }                                                                                                          \
  JIT_PASSES_VECTORIZED float together##Reduction(const Parts& parts) { return together<Reduction>(parts); } \
  JIT_PASSES_VECTORIZED float row##Reduction(const Row& row) {                                               \
    Parts parts;                                                                                             \
    std::fill_n(parts.of, kSumParts, Reduction::start);                                                      \
    takeRow<Reduction>(row, parts);                                                                          \
    return together<Reduction>(parts);                                                                       \
  }
JIT_PASSES_REDUCTION(Sum)
JIT_PASSES_REDUCTION(SumOfSquares)
JIT_PASSES_REDUCTION(LargestNumber)
JIT_PASSES_REDUCTION(SmallestNumber)
#undef JIT_PASSES_REDUCTION

struct Functions {
  float start;
  void (*take)(const Row&, Parts&);
  float (*together)(const Parts&);
  float (*row)(const Row&); // both for one row, which is often a short one
};

Functions functionsOf(ReduceFloats::Which which) {
  switch (which) {
    case ReduceFloats::Length:
      return {SumOfSquares::start, takeRowIntoSumOfSquares, togetherSumOfSquares, rowSumOfSquares};
    case ReduceFloats::Largest:
      return {LargestNumber::start, takeRowIntoLargestNumber, togetherLargestNumber, rowLargestNumber};
    case ReduceFloats::Smallest:
      return {SmallestNumber::start, takeRowIntoSmallestNumber, togetherSmallestNumber, rowSmallestNumber};
    default: return {Sum::start, takeRowIntoSum, togetherSum, rowSum};
  }
}

} // namespace

int64_t ReduceFloats::items(const Image& out) const {
  return out.rows() * ((out.channels + kSumParts - 1) / kSumParts);
}

void ReduceFloats::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const Functions functions = functionsOf(which);
  const auto reach = [](int64_t from, int64_t to) { return to == 1 ? from : 1; };
  const int64_t images = reach(in.images, out.images), planes = reach(in.depth, out.depth);
  const int64_t rows = reach(in.height, out.height), pixels = reach(in.width, out.width);
  const bool whole = out.channels == 1; // channels are gone over, too
  const int64_t blocks = (out.channels + kSumParts - 1) / kSumParts;
  const auto count = static_cast<float>(images * planes * rows * pixels * (whole ? in.channels : 1));
  const auto result = [&](float x) { return which == Mean ? x / count : which == Length ? std::sqrt(x) : x; };
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % blocks * kSumParts, row = item / blocks;
    const int64_t y = row % out.height, z = row / out.height % out.depth, n = row / out.height / out.depth;
    const int64_t channels = whole ? in.channels : std::min(kSumParts, out.channels - first);
    for (int64_t x = 0; x < out.width; ++x) {
      auto* to = reinterpret_cast<float*>(out.at(n, z, y, x)) + first;
      if (whole && images * planes * rows == 1) {
        *to = result(functions.row({in.at(n, z, y, x), pixels, in.pixel, channels}));
        continue;
      }
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
  constexpr int64_t kTogether = 8; // sums that wait for one another are those of one pixel
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
