// First values of trained parameters: statistics of the numbers of the first batch, on all ranks of a
// process group, so that every rank starts from the same.
//
// Sums are in double and in the order of the numbers, whatever the number of threads. Bins of histograms
// are powers of two wide, so those of the ranks merge exactly. Errors are those of all ranks too: one that
// raised alone would leave the others waiting.
#pragma once

#include "channels.h"

namespace jit_passes {

class FirstBatch {
 public:
  // The numbers are x, or x * fold, with fold along fold_axis; channels lie along axis.
  FirstBatch(
      const at::Tensor& x, const std::optional<at::Tensor>& fold, int64_t fold_axis, Axis axis,
      c10::string_view group, c10::string_view name);

  // On all ranks.
  bool empty() const;

  // mean |x| of each channel.
  std::vector<double> meanMagnitudes() const;
  // Of each channel, by a rule of the papers: "max", "three_sigma", which is |mean + shift| + 3 std, or of the
  // whole tensor "klj", as observers/entropy.py finds it.
  std::vector<double> thresholds(
      c10::string_view rule, int64_t quant_min, int64_t quant_max, double shift) const;
  // For the tensor, the range of search_range_l2. Without an offset it is symmetric, and where the codes begin
  // at 0, negative numbers count as 0, for "klj" too: they become 0 at any scale.
  std::pair<double, double> leastSquaredError(int64_t quant_min, int64_t quant_max, bool with_offset) const;

 private:
  struct Histogram;

  template <typename Term>
  std::vector<double> means(const Term& term) const;
  Histogram histogram(bool negative) const;
  double leastDivergence(int64_t quant_min, int64_t quant_max) const;
  at::Tensor agreed(const at::Tensor& values, bool sum) const;

  at::Tensor rows_;    // float32 [channels, numbers], on the CPU
  c10::Device device_; // where the group meets
  std::string group_;
  std::vector<double> low_, high_;
};

} // namespace jit_passes
