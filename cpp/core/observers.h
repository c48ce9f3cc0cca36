// Finding observers, and the fake quantizations that train, in a graph.
#pragma once

#include "graph.h"

namespace jit_passes {

bool isObserver(const Node* node);
// In program order.
std::vector<Node*> observersOf(Graph& graph);

// Whether it is one of the operators that insert_fake_quantize puts into models that train.
bool isTrained(const Node* node);
// In program order.
std::vector<Node*> trainedOf(Graph& graph);
// The operand of that name in the operator's schema, or null.
Value* operandOf(const Node* node, const std::string& name);
void setOperand(Node* node, const std::string& name, Value* value);

} // namespace jit_passes
