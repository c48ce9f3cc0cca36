// The operands of PyTorch's convolutions, whose order differs between operators.
#pragma once

#include "facts/known_values.h"

namespace jit_passes {

// Operands that the operator lacks are null.
struct Convolution {
  Value *input, *weight, *bias, *stride, *padding, *dilation, *groups;
  Value* output_padding = nullptr;
  Value* transposed = nullptr;
  bool is_transposed = false; // where `transposed` is null
  int64_t spatial_dims = 0;   // 0 where the operator's name does not tell

  // Whether `padding` is "same" or "valid".
  bool padsByMode() const { return padding->type()->kind() == c10::TypeKind::StringType; }
  // The number of spatial axes, from the weight, or from the longest list of operands: a list with one number stands
  // for any number of axes.
  std::optional<int64_t> knownDims(const KnownValues& known) const;
  // Inserts aten::conv{1,2,3}d or aten::conv_transpose{1,2,3}d. Null if it is not known which.
  Value* insert(std::optional<int64_t> dims, Node* before, const Node* like) const;
};

// Reads conv1d, _convolution, _convolution_mode and so on.
std::optional<Convolution> readConvolution(const Node* node);
// Also for jit_passes::correlation. Leaves spatial_dims at 0.
Convolution operandsOfConvolution(const Node* node);

constexpr int64_t kMostSpatialDims = 3;

// The convolution whose result becomes the value through functions of one tensor in its block, each the only reader
// of its operand. Null if there is none.
Node* convolutionBehind(Value* value);

// Whether an operator of the graph has three spatial axes.
bool hasVolumes(Graph& graph);
// Whether the node only moves data, and PyTorch has the operator for quantized tensors. PyTorch cannot pad a
// quantized tensor in the channels-last layout of five dimensions. Graphs do not tell the layout, so with `volumes`
// no padding counts. A resize to the present size does not count either.
bool movesQuantizedData(const Node* node, bool volumes);

} // namespace jit_passes
