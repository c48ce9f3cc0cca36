// From the graph of a region to a program.
#pragma once

#include "graph/module.h"
#include "x86/program/program.h"

namespace jit_passes::x86 {

// The program of a region: its graph takes and returns float tensors, one or a tuple, and quantizes what it
// computes. Throws where one of them cannot be part of a plan:
// see planRefusals.
Program build(const torch::jit::Module& region);

// How a plan has a kind of operators: on codes that it only moves, and in float32.
struct PlannedKind {
  bool moves_codes, in_floats;
};
// Besides these, a plan has tables of all functions that work element by element.
std::map<std::string, PlannedKind> plannedKinds();

} // namespace jit_passes::x86
