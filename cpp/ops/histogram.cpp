#include "histogram.h"

#include <algorithm>
#include <cmath>

#include "grid.h"
#include "vectorize.h"

namespace jit_passes {
namespace {

constexpr int64_t kBlock = 512; // values, their bins and the counts share the first-level cache
constexpr int kCopies = 4;      // copies of counts: equal neighbours would wait for each other's store
constexpr int kSmallestExponent = -140;
// In this range the product with 2^-exponent is exact: the factor does not overflow, and no negative value underflows
// to -0, whose floor is 0 rather than -1.
constexpr int kLowestExponent = -126, kHighestExponent = 0;

template <typename Number>
JIT_PASSES_VECTORIZED void findBins(
    const float* x, int32_t* bins, int64_t count, Number inverse_width, Number offset) {
  for (int64_t i = 0; i < count; ++i) {
    bins[i] = static_cast<int32_t>(floorOf(x[i] * inverse_width) - offset);
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

double HistogramLayout::edge(int64_t bin) const {
  return std::ldexp(static_cast<double>(offset + bin), exponent);
}

void addCounts(
    const int64_t* from_counts, HistogramLayout from, int64_t* to_counts, HistogramLayout to, int64_t bins) {
  const int shift = to.exponent - from.exponent;
  for (int64_t bin = 0; bin < bins; ++bin) {
    if (from_counts[bin] != 0) {
      const int64_t absolute = from.offset + bin;
      const int64_t coarser = shift < 63 ? absolute >> shift : (absolute < 0 ? -1 : 0);
      to_counts[coarser - to.offset] += from_counts[bin];
    }
  }
}

HistogramCounter::HistogramCounter(int64_t bins, MinMax expected)
    : bins_(bins), expected_(expected), counts_(bins, 0), recent_(kCopies * bins, 0) {}

void HistogramCounter::add(const float* x, int64_t size) {
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t block = std::min(kBlock, size - start);
    seen_.add(x + start, block);
    if (!seen_.finite) {
      return;
    }
    if (seen_.min < low_ || seen_.max >= high_ || low_ == high_) {
      grow();
    }
    countBlock(x + start, block);
  }
}

void HistogramCounter::moveTo(int64_t* counts, HistogramLayout layout) {
  collect();
  addCounts(counts_.data(), layout_, counts, layout, bins_);
  std::ranges::fill(counts_, 0);
}

void HistogramCounter::grow() {
  const auto grown =
      HistogramLayout::fit(std::min(seen_.min, expected_.min), std::max(seen_.max, expected_.max), bins_);
  collect();
  std::vector<int64_t> moved(bins_, 0);
  addCounts(counts_.data(), layout_, moved.data(), grown, bins_);
  counts_.swap(moved);
  layout_ = grown;
  low_ = layout_.edge(0);
  high_ = layout_.edge(bins_);
}

void HistogramCounter::countBlock(const float* x, int64_t size) {
  int32_t found[kBlock];
  if (layout_.exponent >= kLowestExponent && layout_.exponent <= kHighestExponent) {
    findBins(x, found, size, std::ldexp(1.0f, -layout_.exponent), static_cast<float>(layout_.offset));
  } else {
    const double offset = static_cast<double>(layout_.offset);
    findBins(x, found, size, std::ldexp(1.0, -layout_.exponent), offset);
  }
  uint32_t* recent = recent_.data();
  int64_t i = 0;
  for (; i + kCopies <= size; i += kCopies) {
    for (int copy = 0; copy < kCopies; ++copy) {
      ++recent[kCopies * found[i + copy] + copy];
    }
  }
  for (; i < size; ++i) {
    ++recent[kCopies * found[i]];
  }
  recent_count_ += size;
  if (recent_count_ > std::numeric_limits<uint32_t>::max() - kBlock) {
    collect();
  }
}

void HistogramCounter::collect() {
  if (recent_count_ == 0) {
    return;
  }
  for (int64_t bin = 0; bin < bins_; ++bin) {
    for (int copy = 0; copy < kCopies; ++copy) {
      counts_[bin] += recent_[kCopies * bin + copy];
    }
  }
  std::ranges::fill(recent_, 0);
  recent_count_ = 0;
}

} // namespace jit_passes
