// Which nodes of a graph a plan can compute: asked before the graph is cut into regions, and before weights are
// quantized.
#pragma once

#include "graph/module.h"

namespace jit_passes::x86 {

// Why nodes can be no operators of a plan, by their number in program order. Nodes of kinds that no plan has are left
// out: see plannedKinds. A node that passes may still be no operator of a plan for the types of its operands; with
// `codes`, its result can be codes.
std::map<int64_t, std::string> planRefusals(
    const torch::jit::Module& module, const std::string& method, bool codes);

} // namespace jit_passes::x86
