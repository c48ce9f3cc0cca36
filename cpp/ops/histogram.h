// Histograms that merge exactly.
//
// Bin i counts the values x with floor(x / 2^exponent) == offset + i. The exponent is the smallest
// at which the range seen so far fits into the bins, so it is a function of the data alone; a
// larger one adds neighbouring bins, floor(floor(x / 2^e) / 2) == floor(x / 2^(e + 1)). The result
// therefore depends neither on the order of the batches nor on how they were split.
#pragma once

#include <cstdint>

namespace jit_passes {

struct HistogramLayout {
  int exponent;   // bin width is 2^exponent
  int64_t offset; // index of the first bin, in bin widths from 0

  static HistogramLayout fit(float min, float max, int64_t bins);
};

// Moves the counts of `from` to where `to` wants them; `to` must not be finer.
void rebin(int64_t* counts, int64_t bins, HistogramLayout from, HistogramLayout to);

// Adds the values to the counts. All values must lie within the layout.
void count(const float* x, int64_t size, int64_t* counts, int64_t bins, HistogramLayout layout);

} // namespace jit_passes
