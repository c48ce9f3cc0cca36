// Casts to float32.
#pragma once

#include "graph/graph.h"

namespace jit_passes {

// Whether the node gives its operand as float32, on the operand's device. The node may copy, and lay the operand out
// anew. `device` is the operand's; if it is empty, the operand's device is not known.
bool isToFloat(const Node* node, const std::string& device = "");

// Whether the node gives a float32 operand as it is.
bool keepsFloat(const Node* node, const std::string& device);

} // namespace jit_passes
