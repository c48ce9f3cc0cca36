// Phases of recurrent layers.
#include "phases.h"

namespace jit_passes::x86 {
namespace {

// The place of a sequence in memory.
struct PlacedSequence {
  Sequence sequence;
  int64_t offset;
  size_t home;

  Sequence in(const Call& call) const {
    Sequence placed = sequence;
    placed.data = call.homes[home] + offset;
    return placed;
  }
};

// The places of a recurrent layer's operands.
struct PlacedRecurrence {
  PlacedSequence gates, states, hidden, memory; // memory is the hidden state for cells without one
  int64_t steps, rows;

  Recurrence in(const Call& call) const {
    return {gates.in(call), states.in(call), hidden.in(call), memory.in(call), steps, rows};
  }
};

PlacedRecurrence placedRecurrence(const Operator& op, const Lowered& lowered, const Step& step) {
  using A = RecurrentAttributes;
  const int64_t time = op.attributes[A::BatchFirst], directions = op.attributes[A::Directions];
  const auto sequence = [&](const Memory& memory) -> PlacedSequence {
    const int64_t direction = memory.sizes.back() / directions * memory.bytes();
    return {{nullptr, direction, memory.strides[time], memory.strides[1 - time]}, memory.offset, memory.home};
  };
  const auto first = [&](const Memory& memory) -> PlacedSequence {
    return {{nullptr, memory.strides[0], 0, memory.strides[1]}, memory.offset, memory.home};
  };
  const auto in = [&](size_t i) -> const Memory& { return lowered.memory[step.inputs[i]]; };
  const Sizes& sizes = in(0).sizes;
  return {sequence(in(0)), sequence(lowered.memory[step.output]),
          first(in(1)),    first(in(step.inputs.size() - 1)),
          sizes[time],     sizes[1 - time]};
}

} // namespace

std::vector<Phase> recurrent(
    const Program& program, const Lowered& lowered, const Step& step, int64_t& scratch) {
  const Operator& op = program.operators[step.index];
  const auto on = std::make_shared<const PlacedRecurrence>(placedRecurrence(op, lowered, step));
  const auto layer = step.packed->recurrent;
  const RecurrentLayer::Options how{
      static_cast<RangeForm>(op.attributes[RecurrentAttributes::Form]), kPyTorchRoundsSteps};
  scratch = std::max(scratch, layer->scratchBytes(on->rows));
  Phase phase = describe(program, lowered, step);
  const int64_t items = layer->items(on->rows);
  if (layer->isWhole(on->rows)) {
    phase.parts = {{items, [=](const Call& call, int64_t begin, int64_t end) {
                      layer->runWhole(on->in(call), how, call.scratch, begin, end);
                    }}};
    return {phase};
  }
  std::vector<Phase> phases;
  phase.products /= on->steps;
  for (int64_t now = 0; now < on->steps; ++now) {
    phase.parts = {{items, [=](const Call& call, int64_t begin, int64_t end) {
                      layer->runStep(on->in(call), how, now, call.scratch, begin, end);
                    }}};
    phases.push_back(phase);
    phase.goes_on = true;
    phase.name.clear(), phase.kernel.clear(), phase.sizes = {}; // there may be thousands of steps
  }
  return phases;
}

} // namespace jit_passes::x86
