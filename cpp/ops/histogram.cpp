#include "histogram.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Parallel.h>

#include "core/vectorize.h"

namespace jit_passes {
namespace {

constexpr int64_t kBlock = 1024; // values whose bins are computed ahead of counting
constexpr int64_t kGrain = 1 << 16;
constexpr int kCopies = 4; // neighbouring equal values would wait for each other's store
constexpr int kSmallestExponent = -140;

JIT_PASSES_VECTORIZED void findBins(
    const float* x, int32_t* bins, int64_t count, float inverse_width, float offset) {
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = x[i] * inverse_width;
    // A negative value may underflow to -0, whose floor is not the -1 that it belongs to.
    const float underflow = (x[i] < 0.0f && scaled == 0.0f) ? 1.0f : 0.0f;
    bins[i] = static_cast<int32_t>(__builtin_floorf(scaled) - underflow - offset);
  }
}

void countRange(const float* x, int64_t size, int64_t* counts, int64_t bins, HistogramLayout layout) {
  // Powers of two, so the product is exact and the floor is the bin's definition.
  const float inverse_width = std::ldexp(1.0f, -std::max(layout.exponent, -126));
  const float rest = std::ldexp(1.0f, std::max(0, -126 - layout.exponent));
  std::vector<uint32_t> copies(kCopies * bins, 0);
  int32_t found[kBlock];
  float scaled[kBlock];
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t block = std::min(kBlock, size - start);
    const float* values = x + start;
    if (rest != 1.0f) { // subnormal bins: 2^-exponent itself would overflow
      std::transform(values, values + block, scaled, [&](float value) { return value * rest; });
      values = scaled;
    }
    findBins(values, found, block, inverse_width, static_cast<float>(layout.offset));
    for (int64_t i = 0; i < block; ++i) {
      ++copies[(i % kCopies) * bins + found[i]];
    }
  }
  for (int64_t bin = 0; bin < bins; ++bin) {
    for (int copy = 0; copy < kCopies; ++copy) {
      counts[bin] += copies[copy * bins + bin];
    }
  }
}

} // namespace

HistogramLayout HistogramLayout::fit(float min, float max, int64_t bins) {
  const float largest = std::max(std::abs(min), std::abs(max));
  if (largest == 0) {
    return {kSmallestExponent, 0};
  }
  // Finer bins than float32 resolves at the largest value would only split rounding noise, and
  // their indices would not be exact.
  int exponent = std::max(std::ilogb(largest) - 22, kSmallestExponent);
  const auto index = [&](float x) {
    return static_cast<int64_t>(std::floor(std::ldexp(static_cast<double>(x), -exponent)));
  };
  while (index(max) - index(min) >= bins) {
    ++exponent;
  }
  return {exponent, index(min)};
}

void rebin(int64_t* counts, int64_t bins, HistogramLayout from, HistogramLayout to) {
  if (from.exponent == to.exponent && from.offset == to.offset) {
    return;
  }
  std::vector<int64_t> moved(bins, 0);
  const int shift = to.exponent - from.exponent;
  for (int64_t bin = 0; bin < bins; ++bin) {
    if (counts[bin] != 0) {
      const int64_t absolute = from.offset + bin;
      const int64_t coarser = shift < 63 ? absolute >> shift : (absolute < 0 ? -1 : 0);
      moved[coarser - to.offset] += counts[bin];
    }
  }
  std::copy(moved.begin(), moved.end(), counts);
}

void count(const float* x, int64_t size, int64_t* counts, int64_t bins, HistogramLayout layout) {
  const int64_t chunks = (size + kGrain - 1) / kGrain;
  if (chunks <= 1) {
    return countRange(x, size, counts, bins, layout);
  }
  const int64_t workers = std::min<int64_t>(at::get_num_threads(), chunks);
  std::vector<int64_t> partial(workers * bins, 0);
  at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      const int64_t first = size * worker / workers, last = size * (worker + 1) / workers;
      countRange(x + first, last - first, &partial[worker * bins], bins, layout);
    }
  });
  for (int64_t worker = 0; worker < workers; ++worker) {
    for (int64_t bin = 0; bin < bins; ++bin) {
      counts[bin] += partial[worker * bins + bin];
    }
  }
}

} // namespace jit_passes
