// The parts of an operator's state, for each kind.
#pragma once

#include "program.h"

namespace jit_passes::x86 {

// Counts that it must have.
struct Signature {
  const char* name;
  size_t min_inputs, max_inputs;
  size_t min_attributes, max_attributes;
  size_t min_tensors, max_tensors;
};

const Signature& signatureOf(Kind kind);
// Whether it is a kind at all: a number from a file may be none.
bool isKind(Kind kind);

} // namespace jit_passes::x86
