// Whether a value of a graph matches a value of a pattern: by type, constant or attribute.
#pragma once

#include "graph/graph.h"

namespace jit_passes {

// The content of the attribute that a value is read from. Nothing for other values, or if the graph assigns to it.
using ReadAttribute = std::function<std::optional<c10::IValue>(const Value*)>;

// Whether two constants are equal. Numbers compare by value, since an operator that takes 0.0 takes 0 too.
bool sameConstant(const Value* a, const Value* b);

// Whether the value equals the constant of the pattern. An attribute that is None equals None.
bool isConstantOf(const Value* wanted, const Value* value, const ReadAttribute& attribute);

// Whether the value has the type of the pattern's input. A constant whole number counts as a float too, and an
// attribute that may be None has the type of its content.
bool hasTypeOf(const Value* wanted, const Value* value, const ReadAttribute& attribute);

// A value and its type, for messages.
std::string textOf(const Value* value, const ReadAttribute& attribute);
std::string typeOf(const Value* value, const ReadAttribute& attribute);

// Whether the input is a float and the value a whole number. Some operators compute differently for the two.
bool isWholeForFloat(const Value* input, const Value* value);

} // namespace jit_passes
