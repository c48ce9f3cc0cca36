// Whether a value of a graph can stand for a value of a pattern: by type, constant or attribute.
#pragma once

#include "pattern.h"

namespace jit_passes {

// The content of the attribute that a value is read from; nothing for other values, and where the graph assigns to it.
using ReadAttribute = std::function<std::optional<c10::IValue>(const Value*)>;

// Constants that are equal. Numbers compare by value: an operator takes 0 where it takes 0.0.
bool sameConstant(const Value* a, const Value* b);

// Whether the value is the constant of the pattern; for None also an attribute that is None.
bool isConstantOf(const Value* wanted, const Value* value, const ReadAttribute& attribute);

// Whether the value has the type of the pattern's input. A constant that is a whole number is a float too, and an attribute
// that may be None has the type of what it holds.
bool hasTypeOf(const Value* wanted, const Value* value, const ReadAttribute& attribute);

// How messages speak of a value and of its type.
std::string textOf(const Value* value, const ReadAttribute& attribute);
std::string typeOf(const Value* value, const ReadAttribute& attribute);

// Whether a whole number stands where the input is a float, which an operator may tell apart.
bool isWholeForFloat(const Value* input, const Value* value);

} // namespace jit_passes
