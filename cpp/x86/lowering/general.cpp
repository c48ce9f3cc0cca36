#include "general.h"

#include "lowering.h"

namespace jit_passes::x86 {

void lowerChannels(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  state.emit(
      declarationOf(op.kind).step, index, state.wantAll(op), neededAxis(op, state.sizes[op.output].size()));
}

void lowerWithTable(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  state.emitWithTable(
      declarationOf(op.kind).step, index, state.wantAll(op), neededAxis(op, state.sizes[op.output].size()));
}

void lowerBroadcast(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  requireInputs(op, 1);
  const Sizes& out = state.sizes[op.output];
  const auto as_large =
      std::ranges::find_if(op.inputs, [&](int64_t input) { return state.sizes[input] == out; });
  const size_t whole = state.primary[as_large == op.inputs.end() ? op.inputs[0] : *as_large];
  const int64_t rank = out.size(), missing = rank - state.memory(whole).sizes.size();
  const int64_t axis = state.memory(whole).axis < 0 ? rank - 1 : state.memory(whole).axis + missing;
  std::vector<size_t> operands;
  for (const int64_t input : op.inputs) {
    const int64_t own = axis - (rank - int64_t(state.sizes[input].size()));
    // Without channels the order of the other axes does not matter.
    operands.push_back(
        own < 0 || state.sizes[input][own] == 1 ? state.primary[input] : state.want(input, own));
  }
  state.emitWithTable(declarationOf(op.kind).step, index, operands, axis);
}

void lowerRows(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const int64_t axis = neededAxis(op, state.sizes[op.output].size());
  const auto& uses = state.uses[op.output];
  const auto found = std::ranges::find_if(uses, [&](size_t use) { return state.isQuantize(use); });
  state.emit(declarationOf(op.kind).step, index, state.wantAll(op), axis);
  if (found != uses.end()) {
    Step& step = state.result.steps.back();
    state.fused.insert(*found);
    step.kept = uses.size() > 1 ? std::optional(step.output) : std::nullopt;
    step.output = state.addMemory(state.program.operators[*found].output, axis);
  }
}

void lowerInPlace(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  requireInputs(op, 1);
  state.emit(declarationOf(op.kind).step, index, {state.primary[op.inputs[0]]}, state.ownAxis(op));
}

void lowerAsTheyAre(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  std::vector<size_t> operands;
  for (const int64_t input : op.inputs) {
    operands.push_back(state.primary[input]);
  }
  state.emit(declarationOf(op.kind).step, index, operands, lastAxis(state.sizes[op.output]));
}

} // namespace jit_passes::x86
