// What passes need to know about PyTorch's operators beyond their names.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// An operator that multiplies its input by a weight: operands are input, weight, bias, ...
struct WeightedOperator {
  int64_t spatial_dims; // 0 for linear
  bool transposed;
};

std::optional<WeightedOperator> weightedOperator(const Node* node);

// The axis of the weight along which outputs lie, for transposed convolutions within a group.
inline int64_t outputAxis(const WeightedOperator& op) { return op.transposed ? 1 : 0; }

// Whether FBGEMM has a fast kernel for a convolution in groups: depthwise, for multiples of 8
// channels and windows of 3 or 5 in each direction, padded to keep the size
// (fbgemm/FbgemmI8DepthwiseAvx2.h), or few groups. Others take 100 times as long as in float.
bool fastOnFbgemm(
    at::IntArrayRef weight, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
    int64_t groups);

// Batch and instance norm, which write to their running statistics where they train.
bool isNormalization(c10::Symbol kind);
constexpr size_t kRunningMean = 3, kRunningVar = 4, kTraining = 5, kEps = 7; // operands of theirs

// Whether it is dropout of some kind; its third operand says whether it does anything.
bool isDropout(const Node* node);

// Whether every value of the node's result is a value of its first operand, or zero: then it
// commutes with quantization exactly and runs on integers as it is. chunk, split and unbind count
// as moving data too; their results are lists.
bool movesData(const Node* node);

// Whether each element of the node's result is a function of the elements at the same place of its tensor
// operands, and of numbers: with one such operand it can be computed ahead of time for each code.
bool isElementwise(const Node* node);

// The operators that isElementwise knows, of so many tensor operands, by name.
std::vector<std::string> elementwiseKinds(size_t tensors);

// Whether the node is of the dialect's quantization: it has no name, and says nothing of the model.
// Of the dialect, only what a convolution is split into counts as the model's, and deferred batch norms.
bool isQuantization(const Node* node);

// Whether the node asks only for its first operand's shape.
bool asksForShape(const Node* node);

} // namespace jit_passes JIT_PASSES_API
