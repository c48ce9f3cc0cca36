// Operators of float32 in reference models: those that quantize their input as the model runs, and functions.
#pragma once

#include "reader.h"

namespace jit_passes::x86 {

// A linear layer or convolution, as it is where its input is quantized as the model runs.
Planned withChoice(const Reader& reader, const Node* node, Planned planned);

Planned gelu(const Reader& reader, Node* node);
// Functions without options.
Planned namedFunction(const Reader& reader, Node* node);
Planned leakyRelu(const Reader& reader, Node* node);
Planned elu(const Reader& reader, Node* node);
Planned softplus(const Reader& reader, Node* node);
Planned power(const Reader& reader, Node* node);
Planned negative(const Reader& reader, Node* node);
Planned quotient(const Reader& reader, Node* node);
Planned maskedFill(const Reader& reader, Node* node);
// An operator that goes over axes.
Planned reduction(const Reader& reader, Node* node);
Planned clipping(Node* node, double low, double high);

} // namespace jit_passes::x86
