// The nodes of a graph that a plan can compute, before the graph is cut into regions, and before weights are
// quantized.
#pragma once

#include "graph/module.h"

namespace jit_passes::x86 {

// The reasons why nodes cannot be operators of a plan, by their number in program order. Nodes of kinds that no plan
// has are left out: see plannedKinds. A node without a reason may still be refused later for the types of its
// operands. With `codes`, nodes must also have a form whose result is codes.
std::map<int64_t, std::string> planRefusals(
    const torch::jit::Module& module, const std::string& method, bool codes);

} // namespace jit_passes::x86
