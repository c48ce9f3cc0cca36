// First values of trained parameters: statistics of the numbers of the first batch, over all ranks of a process
// group, so that every rank starts from equal values.
//
// Sums are in double and in the order of the numbers, for any number of threads. Bins of histograms are powers of
// two wide, so the histograms of ranks merge exactly. An error is raised on all ranks: a rank that raised alone
// would leave the others waiting.
#pragma once

#include "channels.h"

namespace jit_passes {

class FirstBatch {
 public:
  // The numbers are x, or x * fold with fold along fold_axis. `axis` is the axis of channels.
  FirstBatch(
      const at::Tensor& x, const std::optional<at::Tensor>& fold, int64_t fold_axis, Axis axis,
      c10::string_view group, c10::string_view name);

  // Whether no rank has a number.
  bool empty() const;

  // mean |x| of each channel.
  std::vector<double> meanMagnitudes() const;
  // The threshold of each channel by "max" or by "three_sigma", |mean + shift| + 3 std; or the threshold of the
  // whole tensor by "klj", as in jit_passes/observers/entropy.py.
  std::vector<double> thresholds(
      c10::string_view rule, int64_t quant_min, int64_t quant_max, double shift) const;
  // The range of the tensor by search_range_l2. Without an offset it is symmetric. If the codes begin at 0, negative
  // numbers count as 0, for "klj" too, since they become 0 at any scale.
  std::pair<double, double> leastSquaredError(int64_t quant_min, int64_t quant_max, bool with_offset) const;

 private:
  struct Histogram;

  template <typename Term>
  std::vector<double> means(const Term& term) const;
  Histogram histogram(bool negative) const;
  double leastDivergence(int64_t quant_min, int64_t quant_max) const;
  at::Tensor agreed(const at::Tensor& values, bool sum) const;

  at::Tensor rows_;    // float32 [channels, numbers], on the CPU
  c10::Device device_; // on which the ranks exchange numbers
  std::string group_;
  std::vector<double> low_, high_;
};

} // namespace jit_passes
