// From the graph of a region to a program.
#pragma once

#include "core/module.h"
#include "core/registry.h"
#include "program.h"

namespace jit_passes::x86 {

// The program of a region: its graph takes and returns float tensors, one or a tuple, and quantizes what it
// computes. Throws, naming the operator, where one cannot be part of a plan.
Program build(const torch::jit::Module& region);

// What can be part of a plan in a whole reference model, by the same rules.
struct Plannable {
  // The nodes of each operator of a plan, in program order; quantize, dequantize and constants left out.
  std::vector<std::vector<torch::jit::Node*>> units;
  std::unordered_map<const torch::jit::Node*, std::string> refused; // why, of those that compute tensors
};
Plannable findPlannable(const PassContext& context);

} // namespace jit_passes::x86
