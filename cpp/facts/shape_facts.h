// Facts of operators about shapes.
#pragma once

#include "graph/operators.h"

namespace jit_passes {

bool isAttention(const Node* node);

// Whether the node is a recurrent layer over sequences that are not packed: [steps, batch, features] or [batch,
// steps, features].
bool isRecurrentLayer(const Node* node);

// Whether the node computes element by element on two tensors, which broadcast.
bool broadcasts(const Node* node);

// For a reduction: how many axes fewer its results have than its operand. Nothing if that is not known.
std::optional<int64_t> reducedAxes(const Node* node);

// Whether the node cuts a tensor into a list of parts.
bool cutsTensor(const Node* node);

// Whether the result has the shape of the second operand and elements of the first.
bool takesShape(const Node* node);

// The list of sizes of a tensor that the node makes, filled with one number or not at all; null for other nodes.
const Value* sizesMade(const Node* node);

// The list of sizes that the node takes, to make a tensor or to reshape one; null for other nodes.
const Value* sizesTaken(const Node* node);

// Whether the node is arange(end, ...) or arange(0, end, ...).
bool isCount(const Node* node);

// Whether the node is a division that gives whole numbers.
bool isQuotient(const Node* node);

// Whether the node converts a number into a tensor or back, as traces do.
bool isConversion(const Node* node);

// Whether the node computes whole numbers from sizes of tensors or other whole numbers.
bool computesSizes(const Node* node);

// Whether the value is the list of all sizes of a tensor.
bool isSizes(const Value* value);

// Whether the node computes a number from numbers, such as the root of a size. In a trace these are tensors without
// axes.
bool computesNumber(const Node* node);

// Whether the node repeats or cuts a constant. Regions copy these nodes.
bool repeatsOrCuts(const Node* node);

// The constant that the node repeats or cuts according to sizes: a class token for each image of a batch, or
// positions for the tokens. Null for other nodes.
const Node* movedConstant(const Node* node);

// The whole number of a constant, also of a tensor that a trace has made of a number.
std::optional<int64_t> wholeNumber(const Value* value);

} // namespace jit_passes
