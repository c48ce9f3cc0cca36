// The least and the largest number of a batch, for operators that follow ranges in training.
#pragma once

#include "channels.h"

namespace jit_passes {

// The observed numbers: x, or x * fold with a number of the fold for each channel along fold_axis; channels lie
// along axis. With pair_sums ranges are widened as observe_pair_sums does.
struct Observed {
  std::optional<at::Tensor> fold;
  int64_t fold_axis;
  Axis axis;
  bool pair_sums;
  c10::string_view group, name;
};

// [2, channels], or [2, 1] without an axis, on all ranks of the group; +inf and -inf where no rank has a
// number. A NaN or an infinity is an error that names the value.
at::Tensor rangeOfBatch(const at::Tensor& x, const Observed& observed);

// The same on any device, in float32. A NaN in the batch is one in the range.
at::Tensor rangeOfBatchByOperators(const at::Tensor& x, const Observed& observed);

} // namespace jit_passes
