// The smallest and the largest number of a batch, for operators whose range follows the data in training.
#pragma once

#include "channels.h"

namespace jit_passes {

// The observed numbers: x, or x * fold, with one number of the fold for each channel along fold_axis. `axis` is the
// axis of channels. With pair_sums, ranges are widened as by observe_pair_sums.
struct Observed {
  std::optional<at::Tensor> fold;
  int64_t fold_axis;
  Axis axis;
  bool pair_sums;
  c10::string_view group, name;
};

// The range as [2, channels], or [2, 1] without an axis, over all ranks of the group; +inf and -inf if no rank has a
// number. A NaN or an infinity is an error that names the value.
at::Tensor rangeOfBatch(const at::Tensor& x, const Observed& observed);

// The range on any device, in float32. A NaN in the batch gives a NaN in the range.
at::Tensor rangeOfBatchByOperators(const at::Tensor& x, const Observed& observed);

} // namespace jit_passes
