// From the graph of a region to a program.
#pragma once

#include "core/module.h"
#include "program.h"

namespace jit_passes::x86 {

// The program of a region: its graph takes and returns float tensors, one or a tuple, and quantizes what it
// computes. Throws, naming the operator, where one cannot be part of a plan.
Program build(const torch::jit::Module& region);

// The kinds of operators that a plan has, and whether each only moves codes. Besides these, a plan has clips, and
// tables of whatever works element by element.
std::map<std::string, bool> plannedKinds();

} // namespace jit_passes::x86
