// From nodes of a reference model to operators of a plan: what the functions of several operators share.
#pragma once

#include "reader.h"
#include "x86/kernels/floats.h"
#include "x86/program/declaration.h"

namespace jit_passes::x86 {

// A linear layer or convolution, as it is where its input is quantized as the model runs.
Planned withChoice(const RegionReader& reader, const Node* node, Planned planned);

// Numbers for depth, height and width, of the last axes; the others have `rest`.
void setLast(std::vector<int64_t>& attributes, size_t at, const std::vector<int64_t>& numbers, int64_t rest);
// Weight, scales and bias.
std::vector<at::Tensor> weighted(const RegionReader& reader, const Node* node);
// Of a number, or a tensor without axes.
std::optional<double> numberOf(const RegionReader& reader, const Value* value);

Planned function(Node* node, FloatFunction::Which which, const std::vector<double>& numbers = {});
Planned clipping(Node* node, double low, double high);

} // namespace jit_passes::x86
