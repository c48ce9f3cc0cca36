// Compute everything that is known before a graph runs: constants, checks for None, ranks, sizes, dtypes, the
// content of containers, and the branches and loops that these decide. Without the option `tensors`, functions of
// constant tensors stay: a reference model computes with the integers of its weights.
//
// Each answer leads to the next: constants decide branches, branches tell ranks, ranks tell sizes, and sizes are
// constants. So the steps take turns until none of them changes anything. Each file of this folder has one step, and
// begins with the change that it makes to the IR.
//
// The pass propagate_constants runs the steps that look at constants and types alone, once each. This pass also
// takes graphs with calls, and loaded files, which have lists of numbers element by element.
#include "simplify.h"

namespace jit_passes {

// Unrolls a loop that runs a known number of times.
bool unrollLoops(PassContext& context) {
  auto graph = context.graph();
  return torch::jit::UnrollConstantLoops(graph);
}

namespace {

constexpr std::array kSteps{
    resolveNoneChecks, resolveTuples,     propagateConstants, resolveDicts,       resolveLists,
    unrollLoops,       foldConstantLists, resolveSizeTensors, resolveSizeLists,   foldDtypes,
    settleBranches,    removeRankChecks,  foldSizes,          foldMovedConstants,
};
constexpr std::array kStepsOfConstants{resolveNoneChecks, propagateConstants, foldConstantLists};
// Real models need two or three rounds. The bound guards against steps that undo each other.
constexpr size_t kMostRounds = 100;

bool simplify(PassContext& context) {
  bool changed = false;
  size_t quiet = 0; // steps in a row that changed nothing
  for (size_t i = 0; quiet < kSteps.size() && i < kMostRounds * kSteps.size(); ++i) {
    const bool has_work = kSteps[i % kSteps.size()](context);
    quiet = has_work ? 0 : quiet + 1;
    changed |= has_work;
  }
  return changed;
}

bool simplifyConstants(PassContext& context) {
  bool changed = false;
  for (const auto step : kStepsOfConstants) {
    changed |= step(context);
  }
  return changed;
}

const RegisterPass simplify_pass{
    "simplify",
    "Compute constants, sizes, branches, loops and containers as far as the graph tells before it runs.",
    simplify, needs("inlined"), takes({{"tensors", "bool", true}})};
const RegisterPass propagate_constants_pass{
    "propagate_constants",
    "Compute numbers, lists and checks for None that follow from constants and types alone.",
    simplifyConstants,
    {},
    takes({{"tensors", "bool", true}})};

} // namespace
} // namespace jit_passes
