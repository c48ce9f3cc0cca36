// Let a switch of the module freeze the statistics of all batch norms.
//
//   %y = aten::batch_norm(%x, ..., %training, ...)
//     ->
//   %frozen : Tensor = prim::GetAttr[name="statistics_frozen"](%self)
//   %stands : bool = aten::Bool(%frozen)
//   %moves : bool = aten::__not__(%stands)
//   %trains : bool = aten::__and__(%training, %moves)
//   %y = aten::batch_norm(%x, ..., %trains, ...)
//
// The first three nodes stand once, at the start of the graph. With frozen statistics, a batch norm computes in
// training as in eval mode, but num_batches_tracked counts on. A batch norm without running statistics stays as it
// is. The switch is a buffer, so it is saved and loaded with the model.
#include "graph/module.h"
#include "graph/registry.h"
#include "quantization/batch_norm.h"

namespace jit_passes {
namespace {

constexpr auto kSwitch = "statistics_frozen";

// Whether the value is %trains already, so that a second run changes nothing.
bool isSwitched(const Value* training) {
  const Node* node = training->node();
  for (const auto& [kind, operand] : std::initializer_list<std::pair<c10::Symbol, size_t>>{
           {aten::__and__, 1}, {aten::__not__, 0}, {aten::Bool, 0}}) {
    if (node->kind() != kind) {
      return false;
    }
    node = node->input(operand)->node();
  }
  return node->kind() == prim::GetAttr && node->s(attr::name) == kSwitch;
}

bool addStatisticsSwitch(PassContext& context) {
  const auto graph = context.graph();
  const KnownValues known(context, /*attributes_apart=*/true);
  Node* start = graph->block()->nodes().front();
  Value* moves = nullptr;
  return changeNodes(*graph, [&](Node* node) {
    if (!isBatchNorm(node) || constantNumber(node->input(kTraining)) == 0.0 || !hasStatistics(known, node) ||
        isSwitched(node->input(kTraining))) {
      return false;
    }
    if (moves == nullptr) {
      Value* stands = readSwitch(context.module(), *graph, start, kSwitch, false);
      moves = insertValue(start, aten::__not__, {stands}, start, c10::BoolType::get());
    }
    const auto operands = {node->input(kTraining), moves};
    node->replaceInput(kTraining, insertValue(node, aten::__and__, operands, node, c10::BoolType::get()));
    return true;
  });
}

const RegisterPass add_statistics_switch_pass{
    "add_statistics_switch", "Let a switch of the module freeze the statistics of all batch norms.",
    addStatisticsSwitch, needs("inlined")};

} // namespace
} // namespace jit_passes
