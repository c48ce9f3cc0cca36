// From the graph of a region to a program.
#pragma once

#include "graph/module.h"
#include "x86/program/program.h"

namespace jit_passes::x86 {

// The program of a region, whose graph takes and returns float tensors, one or a tuple. An operator that cannot be
// part of a plan is an error: see planRefusals.
Program build(const torch::jit::Module& region);

// The forms in which a plan has a kind of operators.
struct PlannedKind {
  bool moves_codes, in_floats;
};
// A plan also has all functions that work element by element, as tables.
std::map<std::string, PlannedKind> plannedKinds();

} // namespace jit_passes::x86
