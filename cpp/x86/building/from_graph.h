// Functions for files of operators that turn nodes of a reference model into operators of a plan.
#pragma once

#include "reader.h"
#include "x86/kernels/floats.h"
#include "x86/program/declaration.h"

namespace jit_passes::x86 {

// The dynamic form of a linear layer or convolution, if its input is quantized at run time.
JIT_PASSES_API Planned withChoice(const RegionReader& reader, const Node* node, Planned planned);

// Writes the numbers of the last spatial axes to the positions of depth, height and width. All further positions get
// `rest`.
JIT_PASSES_API void setLast(
    std::vector<int64_t>& attributes, size_t at, const std::vector<int64_t>& numbers, int64_t rest);
// The tensors of an operator with weights: weight, scales and bias.
JIT_PASSES_API std::vector<at::Tensor> weighted(const RegionReader& reader, const Node* node);
// The value of a constant number, or of a tensor without axes.
JIT_PASSES_API std::optional<double> numberOf(const RegionReader& reader, const Value* value);

JIT_PASSES_API Planned
function(Node* node, FloatFunction::Which which, const std::vector<double>& numbers = {});

} // namespace jit_passes::x86
