// From the graph of a region to a program.
#pragma once

#include "core/module.h"
#include "program.h"

namespace jit_passes::x86 {

// An operator that cannot be part of a plan, though others of its region may. `name` is that in the region's graph.
struct RefusedOperator : std::runtime_error {
  std::string name;

  RefusedOperator(const std::string& message, std::string of)
      : std::runtime_error(message), name(std::move(of)) {}
};

// The program of a region: its graph takes and returns float tensors, one or a tuple, and quantizes what it
// computes. Throws `RefusedOperator` where one of them cannot be part of a plan.
Program build(const torch::jit::Module& region);

// The kinds of operators that a plan has, and whether each only moves codes. Besides these, a plan has clips, and
// tables of whatever works element by element.
std::map<std::string, bool> plannedKinds();

} // namespace jit_passes::x86
