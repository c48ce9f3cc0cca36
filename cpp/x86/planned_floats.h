// Operators of float32 in reference models: dynamic linear layers, and functions.
#pragma once

#include "reader.h"

namespace jit_passes::x86 {

// Whether a linear layer's input is quantized as the model runs.
bool isDynamic(const Node* linear);
Planned dynamicLinear(const Reader& reader, Node* node);

Planned gelu(const Reader& reader, Node* node);
// By a number.
Planned quotient(const Reader& reader, Node* node);
Planned clipping(Node* node, double low, double high);

} // namespace jit_passes::x86
