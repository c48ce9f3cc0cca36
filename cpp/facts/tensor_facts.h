// All that a graph tells of its tensors before it runs, as plain data.
#pragma once

#include "shapes.h"

namespace jit_passes {

struct TensorFacts {
  AxisRange axes;
  // Of the last axes: of as many as the tensor has for certain.
  std::vector<std::optional<int64_t>> sizes;
  std::optional<at::ScalarType> dtype;
};

// The facts by the unique numbers of values. A tensor of which nothing is known is not among them. Images have a batch
// axis where the graph does not say so. `attributes_apart` as in writtenValues.
std::unordered_map<int64_t, TensorFacts> tensorFacts(
    const PassContext& context, bool attributes_apart = false);

} // namespace jit_passes
