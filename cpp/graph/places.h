// Places: where a value will be quantized once the model is converted.
//
// An operator stands at a place if the last argument of its schema is `str spec`, custom operators too. The operand
// is the place's text (jit_passes/specification/place.py), which begins with the place's id. An operator without
// results is an observer; an operator with a result is fake quantization, which the model trains with.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// Whether an operator with this schema stands at a place.
bool isPlaceSchema(const c10::FunctionSchema& schema);

bool isPlace(const Node* node);
bool isObserver(const Node* node);
bool isTrained(const Node* node);
// All nodes that stand at places, in program order.
std::vector<Node*> placesOf(Graph& graph);
// The id at the beginning of the operand `spec`.
int64_t placeIdOf(const Node* node);

} // namespace jit_passes JIT_PASSES_API
