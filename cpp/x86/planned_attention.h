// Operators of transformers in reference models.
#pragma once

#include "reader.h"

namespace jit_passes::x86 {

Planned matrixProduct(const Reader& reader, Node* node);
Planned batchedProduct(const Reader& reader, Node* node);
Planned softmax(const Reader& reader, Node* node);
Planned layerNorm(const Reader& reader, Node* node);
Planned rmsNorm(const Reader& reader, Node* node);
Planned groupNorm(const Reader& reader, Node* node);

} // namespace jit_passes::x86
