// The operands of PyTorch's convolutions, in whatever order an operator has them.
#pragma once

#include "facts/known_values.h"

namespace jit_passes {

// Null where the operator has none.
struct Convolution {
  Value *input, *weight, *bias, *stride, *padding, *dilation, *groups;
  Value* output_padding = nullptr;
  Value* transposed = nullptr;
  bool is_transposed = false; // where `transposed` is null
  int64_t spatial_dims = 0;   // 0 where the operator's name does not tell

  // Whether `padding` is a word.
  bool padsByMode() const { return padding->type()->kind() == c10::TypeKind::StringType; }
  // The number of axes that the weight tells, or else the longest list: one of a single number stands for any
  // number of axes.
  std::optional<int64_t> knownDims(const KnownValues& known) const;
  // Inserts aten::conv{1,2,3}d or aten::conv_transpose{1,2,3}d. Null where it takes more to know which.
  Value* insert(std::optional<int64_t> dims, Node* before, const Node* like) const;
};

// Of conv1d, _convolution, _convolution_mode and so on.
std::optional<Convolution> readConvolution(const Node* node);
// Of jit_passes::correlation too. The number of axes, which the name of the operator tells, is left out.
Convolution operandsOfConvolution(const Node* node);

constexpr int64_t kMostSpatialDims = 3;

// The convolution that a value comes from, through functions of one tensor in its block, each the only reader of what
// it reads; null if none.
Node* convolutionBehind(Value* value);

// Whether an operator of the graph has three spatial axes.
bool hasVolumes(Graph& graph);
// Whether it only moves data, and PyTorch has it for quantized tensors. It does not pad these in the channels-last layout
// of five dimensions, and graphs do not tell the layout: with `volumes`, nothing is padded so. Nor does it resize them to
// the size that they have.
bool movesQuantizedData(const Node* node, bool volumes);

} // namespace jit_passes
