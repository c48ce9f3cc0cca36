// The layout of a channel axis in memory.
#pragma once

#include "graph/registry.h"

namespace jit_passes {

// The axis of channels. Nothing if the whole tensor is one channel.
using Axis = std::optional<int64_t>;

// The elements of a dense tensor in memory order are an array [outer, channels, inner]: contiguous,
// channels-last and all other permutations alike.
struct ChannelLayout {
  int64_t outer = 1;
  int64_t channels = 1;
  int64_t inner = 1;
};

// Without an axis the whole tensor is one channel.
inline ChannelLayout channelLayout(const at::Tensor& dense, Axis axis) {
  if (!axis || dense.size(*axis) == 1 || dense.numel() == 0) {
    return {1, 1, dense.numel()};
  }
  const int64_t channels = dense.size(*axis), inner = dense.stride(*axis);
  return {dense.numel() / (channels * inner), channels, inner};
}

// The axis counted from the front. A negative axis counts from the end.
inline Axis wrapAxis(Axis axis, const at::Tensor& x) {
  if (!axis) {
    return axis;
  }
  TORCH_CHECK(
      *axis >= -x.dim() && *axis < x.dim(), "ch_axis ", *axis, " is outside of a tensor with ", x.dim(),
      " dimensions: choose another axis, or None for one scale for the tensor");
  return *axis < 0 ? *axis + x.dim() : *axis;
}

// x if it is dense, else a copy in the layout of results of PyTorch's elementwise operators.
inline at::Tensor denseOf(const at::Tensor& x) {
  return x.is_non_overlapping_and_dense() ? x : x.clone(at::MemoryFormat::Preserve);
}

} // namespace jit_passes
