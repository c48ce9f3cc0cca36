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
// in use, but for num_batches_tracked, which counts on. One without running statistics knows none but the
// batch's, and stays. The switch is a buffer, so it is saved and loaded with the model.
#include "core/batch_norm.h"
#include "core/module.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

constexpr auto kSwitch = "statistics_frozen";

// Whether it is %trains: a second run changes nothing.
bool isSwitched(const Value* training) {
  const Node* node = training->node();
  for (const auto& [kind, operand] : std::initializer_list<std::pair<c10::Symbol, size_t>>{
           {c10::aten::__and__, 1}, {c10::aten::__not__, 0}, {c10::aten::Bool, 0}}) {
    if (node->kind() != kind) {
      return false;
    }
    node = node->input(operand)->node();
  }
  return node->kind() == c10::prim::GetAttr && node->s(c10::attr::name) == kSwitch;
}

class Switch {
 public:
  explicit Switch(PassContext& context)
      : context_(context),
        graph_(context.graph()),
        known_(context, /*attributes_apart=*/true),
        start_(graph_->block()->nodes().front()) {}

  bool run() {
    forEachNode(*graph_, [&](Node* node) {
      if (isBatchNorm(node) && constantNumber(node->input(kTraining)) != 0.0 && hasStatistics(known_, node) &&
          !isSwitched(node->input(kTraining))) {
        addTo(node);
      }
    });
    return moves_ != nullptr;
  }

 private:
  void addTo(Node* norm) {
    const auto operands = {norm->input(kTraining), moves()};
    norm->replaceInput(
        kTraining, insertValue(norm, c10::aten::__and__, operands, norm, c10::BoolType::get()));
  }

  Value* moves() {
    if (moves_ == nullptr) {
      Value* stands = readSwitch(context_.module(), *graph_, start_, kSwitch, false);
      moves_ = insertValue(start_, c10::aten::__not__, {stands}, start_, c10::BoolType::get());
    }
    return moves_;
  }

  PassContext& context_;
  std::shared_ptr<Graph> graph_;
  KnownValues known_;
  Node* start_;
  Value* moves_ = nullptr;
};

bool addStatisticsSwitch(PassContext& context) { return Switch(context).run(); }

const RegisterPass add_statistics_switch_pass{
    "add_statistics_switch",
    "Let a switch of the module freeze the statistics of all batch norms.",
    addStatisticsSwitch,
    {"inlined"}};

} // namespace
} // namespace jit_passes
