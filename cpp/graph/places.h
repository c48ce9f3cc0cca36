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

// The id of the place of a quantize, a dequantize, or a node that a pass has made of one; nothing for other nodes.
// The node keeps it, but files do not: see Report.places in jit_passes/stages/module.py.
std::optional<int64_t> placeOf(const Node* node);
void setPlace(Node* node, int64_t place);
// Gives the place of `from` to `to`, which replaces it. If `to` has a place already, it keeps its own.
void handOverPlace(const Node* from, Node* to);
// Removes the place from a node of a part that was quantized earlier: its id means nothing in this model.
void forgetPlace(Node* node);

} // namespace jit_passes JIT_PASSES_API
