// Places: where a value will be quantized once the model is converted.
//
// An operator stands at a place if the last argument of its schema is `str spec`, whoever has defined it.
// The operand is the place's text (jit_passes/specification/place.py), which begins with the place's id. An
// operator without results observes the value, one with a result is what the model trains with.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// The operator's schema, if it is that of a place.
bool isPlaceSchema(const c10::FunctionSchema& schema);

bool isPlace(const Node* node);
bool isObserver(const Node* node);
bool isTrained(const Node* node);
// In program order.
std::vector<Node*> placesOf(Graph& graph);
// The id at the beginning of the operand `spec`.
int64_t placeIdOf(const Node* node);

// The id of the place that quantize, dequantize, or what a pass has made of them, stands for.
// Nothing for others. Kept in the node, so files do not have it: see Report.places in
// jit_passes/stages/module.py.
std::optional<int64_t> placeOf(const Node* node);
void setPlace(Node* node, int64_t place);
// To a node that takes the place of another; one that has a place already keeps it.
void handOverPlace(const Node* from, Node* to);
// Takes the place from a node of a model that was quantized before: its number is none of this one's.
void forgetPlace(Node* node);

} // namespace jit_passes JIT_PASSES_API
