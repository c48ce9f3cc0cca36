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
// The first three once, at the start of the graph. Frozen, a batch norm does in training what it does
// in use. The switch is a buffer, so it is saved and loaded with the model.
#include "core/batch_norm.h"
#include "core/module.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool addStatisticsSwitch(PassContext& context) {
  const auto graph = context.graph();
  Node* start = graph->block()->nodes().front();
  Value* moves = nullptr;
  forEachNode(*graph, [&](Node* node) {
    if (!isBatchNorm(node) || constantNumber(node->input(kTraining)) == 0.0) {
      return;
    }
    if (moves == nullptr) {
      Value* stands = readSwitch(context.module(), *graph, start, "statistics_frozen", false);
      moves = insertNode(start, c10::aten::__not__, {stands}, start)->output();
      moves->setType(c10::BoolType::get());
    }
    Node* both = insertNode(node, c10::aten::__and__, {node->input(kTraining), moves}, node);
    both->output()->setType(c10::BoolType::get());
    node->replaceInput(kTraining, both->output());
  });
  return moves != nullptr;
}

const RegisterPass registration{
    "add_statistics_switch",
    "Let a switch of the module freeze the statistics of all batch norms.",
    addStatisticsSwitch,
    {"inlined"}};

} // namespace
} // namespace jit_passes
