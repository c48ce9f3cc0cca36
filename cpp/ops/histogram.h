// Histograms that merge exactly.
//
// Bin i counts the values x with floor(x / 2^exponent) == offset + i. The exponent is the smallest for which the
// range seen so far fits into the bins, so it is a function of the data alone. A larger exponent adds neighbouring
// bins: floor(floor(x / 2^e) / 2) == floor(x / 2^(e + 1)). So the result depends neither on the order of the batches
// nor on the way the data were split into batches.
#pragma once

#include <cstdint>
#include <vector>

#include "observation.h"

namespace jit_passes {

struct HistogramLayout {
  int exponent = 0;   // bin width is 2^exponent
  int64_t offset = 0; // index of the first bin, in bin widths from 0

  static HistogramLayout fit(float min, float max, int64_t bins);

  // The lower edge of a bin.
  double edge(int64_t bin) const;
};

// Adds counts of one layout to counts of another, which must cover its range and not be finer.
void addCounts(
    const int64_t* from_counts, HistogramLayout from, int64_t* to_counts, HistogramLayout to, int64_t bins);

// Counts values in one pass over memory. Each block is measured first; if it reaches beyond the layout, the layout
// grows before the block is counted.
class HistogramCounter {
 public:
  // `expected` is a range that the layout must cover from the start; none if min > max.
  HistogramCounter(int64_t bins, MinMax expected);

  // Returns early at a value that is not finite.
  void add(const float* x, int64_t size);

  // Adds all counts so far to counts of a layout that covers them.
  void moveTo(int64_t* counts, HistogramLayout layout);

  const Extremes& seen() const { return seen_; }

 private:
  void grow();
  void countBlock(const float* x, int64_t size);
  void collect();

  int64_t bins_;
  MinMax expected_;
  Extremes seen_;
  HistogramLayout layout_;
  double low_ = 0, high_ = 0; // the layout holds low_ <= x < high_
  std::vector<int64_t> counts_;
  std::vector<uint32_t> recent_; // kCopies for each bin
  int64_t recent_count_ = 0;
};

} // namespace jit_passes
