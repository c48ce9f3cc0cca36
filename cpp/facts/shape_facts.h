// Facts of operators about shapes.
#pragma once

#include "graph/operators.h"

namespace jit_passes {

bool isAttention(const Node* node);

// A recurrent layer of sequences that are not packed: [steps, batch, features], or the first two the other way round.
bool isRecurrentLayer(const Node* node);

// Two tensors, number by number.
bool broadcasts(const Node* node);

// By how many axes its results have fewer than its operand, of what goes over axes; nothing where that is not known.
std::optional<int64_t> reducedAxes(const Node* node);

// Whether it gives the elements of its first operand in the shape of the second, which may have more.
bool takesShape(const Node* node);

// The list of sizes in which it makes a tensor of one number, or of none; null for others.
const Value* sizesMade(const Node* node);

// The list of sizes that the node takes, to make a tensor or to give it other axes; null for others.
const Value* sizesTaken(const Node* node);

// arange(end, ...), or arange(0, end, ...)
bool isCount(const Node* node);

// A division that gives whole numbers.
bool isQuotient(const Node* node);

// A number of a tensor, or one as a tensor, as traces have it.
bool isConversion(const Node* node);

// Whether it makes whole numbers of sizes of tensors, and of other whole numbers.
bool computesSizes(const Node* node);

// All sizes of a tensor.
bool isSizes(const Value* value);

// Whether it makes a number of numbers, such as the root of a size; in a tensor without axes where a trace has one.
bool computesNumber(const Node* node);

// Whether it is one of the moves of constants that each region has for itself.
bool repeatsOrCuts(const Node* node);

// The constant that it repeats or cuts as long as sizes say, as the token of a class in front of each image's, or
// positions of as many tokens as there are; null for others.
const Node* movedConstant(const Node* node);

// A constant, also the tensor that traces make of a number.
std::optional<int64_t> wholeNumber(const Value* value);

} // namespace jit_passes
