#include "lowering.h"
#include "x86/program/declaration.h"

namespace jit_passes::x86 {
namespace {

// The axis of the result that an axis of the operand is; -1 where it is gone.
int64_t axisBehind(const Operator& op, int64_t axis, int64_t rank) {
  if (op.attributes[0] || axis < 0) {
    return axis;
  }
  int64_t in_front = 0;
  for (int64_t i = 0; i < axis; ++i) {
    in_front += isReduced(op, i, rank);
  }
  return isReduced(op, axis, rank) ? -1 : axis - in_front;
}

} // namespace

Lowered Lowering::run(std::vector<Sizes> orders) {
  result_.orders = std::move(orders);
  readUses();
  findViews();
  for (size_t index = 0; index < program_.operators.size(); ++index) {
    if (!fused_.count(index) && !isView(index)) {
      lowerOperator(index);
    }
  }
  for (size_t number = 0; number < program_.outputs.size(); ++number) {
    push({.does = Does::Exit, .index = 0, .inputs = {primary_[program_.outputs[number]]}, .output = number});
  }
  findBorders();
  settleNames();
  placeResults();
  fuseChains(result_);
  placeMemory(result_);
  return std::move(result_);
}

// Finds the readers of each value, and the axis that the first of them wants innermost.
void Lowering::readUses() {
  const size_t count = program_.grids.size();
  uses_.resize(count), wanted_.assign(count, -2), primary_.resize(count);
  for (size_t index = program_.operators.size(); index-- > 0;) {
    const Operator& op = program_.operators[index];
    for (const int64_t input : op.inputs) {
      uses_[input].push_back(index);
      const int64_t rank = sizes_[input].size();
      if (isDynamic(op.kind) && isConvolution(op.kind)) {
        wanted_[input] = lastAxis(sizes_[input]); // whatever it is, its codes get another one
      } else if (const auto axis = channelAxis(op, rank)) {
        wanted_[input] = *axis;
      } else if (sizes_[op.output].size() == sizes_[input].size() && wanted_[op.output] != -2) {
        wanted_[input] = wanted_[op.output];
      } else if (op.kind == Kind::Roll) {
        wanted_[input] = restingAxis(op, rank);
      }
    }
  }
  for (size_t value = 0; value < count; ++value) {
    if (wanted_[value] == -2) {
      const size_t rank = sizes_[value].size();
      wanted_[value] = rank == 4 || rank == 5 ? 1 : lastAxis(sizes_[value]);
    }
  }
  for (const int64_t output : program_.outputs) {
    uses_[output].push_back(SIZE_MAX);
  }
}

void Lowering::lowerOperator(size_t index) {
  (this->*declarationOf(program_.operators[index].kind).lower)(index);
}

std::vector<size_t> Lowering::wantAll(const Operator& op) {
  std::vector<size_t> operands;
  for (const int64_t input : op.inputs) {
    operands.push_back(want(input, *channelAxis(op, sizes_[input].size())));
  }
  return operands;
}

void Lowering::lowerChannels(size_t index) {
  const Operator& op = program_.operators[index];
  emit(declarationOf(op.kind).step, index, wantAll(op), *channelAxis(op, sizes_[op.output].size()));
}

void Lowering::lowerWithTable(size_t index) {
  const Operator& op = program_.operators[index];
  emitWithTable(declarationOf(op.kind).step, index, wantAll(op), *channelAxis(op, sizes_[op.output].size()));
}

void Lowering::lowerBroadcast(size_t index) {
  const Operator& op = program_.operators[index];
  const Sizes& out = sizes_[op.output];
  const auto as_large = std::ranges::find_if(op.inputs, [&](int64_t input) { return sizes_[input] == out; });
  const size_t whole = primary_[as_large == op.inputs.end() ? op.inputs[0] : *as_large];
  const int64_t rank = out.size(), missing = rank - memory(whole).sizes.size();
  const int64_t axis = memory(whole).axis < 0 ? rank - 1 : memory(whole).axis + missing;
  std::vector<size_t> operands;
  for (const int64_t input : op.inputs) {
    const int64_t own = axis - (rank - int64_t(sizes_[input].size()));
    // Without these channels, any order of the others does.
    operands.push_back(own < 0 || sizes_[input][own] == 1 ? primary_[input] : want(input, own));
  }
  emitWithTable(declarationOf(op.kind).step, index, operands, axis);
}

void Lowering::lowerRows(size_t index) {
  const Operator& op = program_.operators[index];
  const int64_t axis = *channelAxis(op, sizes_[op.output].size());
  const auto& uses = uses_[op.output];
  const auto found = std::ranges::find_if(uses, [&](size_t use) { return isQuantize(use); });
  emit(declarationOf(op.kind).step, index, wantAll(op), axis);
  if (found != uses.end()) {
    Step& step = result_.steps.back();
    fused_.insert(*found);
    step.kept = uses.size() > 1 ? std::optional(step.output) : std::nullopt;
    step.output = addMemory(program_.operators[*found].output, axis);
  }
}

void Lowering::lowerInPlace(size_t index) {
  const Operator& op = program_.operators[index];
  emit(declarationOf(op.kind).step, index, {primary_[op.inputs[0]]}, ownAxis(op));
}

void Lowering::lowerAsTheyAre(size_t index) {
  const Operator& op = program_.operators[index];
  std::vector<size_t> operands;
  for (const int64_t input : op.inputs) {
    operands.push_back(primary_[input]);
  }
  emit(declarationOf(op.kind).step, index, operands, lastAxis(sizes_[op.output]));
}

// Operators that quantize the input read the tensor itself. Others do so if its memory order suits them.
void Lowering::lowerInput(size_t index) {
  const Operator& op = program_.operators[index];
  const auto& uses = uses_[op.output];
  const size_t source = op.attributes[0];
  const int64_t axis = wanted_[op.output];
  if (std::ranges::all_of(uses, [&](size_t use) { return isQuantize(use); })) {
    return;
  }
  if (contiguous_[source] && inOrder(orderOf(sizes_[op.output], axis))) {
    memory(addMemory(op.output, axis)).home = 1 + source;
  } else {
    emit(Does::Take, index, {}, axis);
    result_.steps.back().source = source;
  }
}

void Lowering::lowerQuantize(size_t index) {
  const Operator& op = program_.operators[index];
  const Operator& maker = program_.operators[makers_[op.inputs[0]]];
  if (maker.kind == Kind::Input) {
    emit(Does::Enter, index, {}, wanted_[op.output]);
    result_.steps.back().source = maker.attributes[0];
  } else {
    const bool many =
        int64_t(sizes_[op.output].size()) > kMostAxes; // which are gone through in their own order
    emit(Does::Quantize, index, {primary_[op.inputs[0]]}, many ? ownAxis(op) : wanted_[op.output]);
  }
}

void Lowering::lowerConstant(size_t index) {
  emit(Does::Compute, index, {}, wanted_[program_.operators[index].output]);
}

void Lowering::lowerFunction(size_t index) {
  lowerInPlace(index);
  result_.steps.back().function = functionOf(program_.operators[index]);
}

void Lowering::lowerTable(size_t index) {
  lowerInPlace(index);
  result_.steps.back().table = program_.operators[index].tensors[0].const_data_ptr<uint8_t>();
}

void Lowering::lowerMean(size_t index) {
  const Operator& op = program_.operators[index];
  if (memory(primary_[op.inputs[0]]).grid->is_float) {
    return lowerReduction(index);
  }
  const int64_t rank = sizes_[op.inputs[0]].size();
  int64_t axis = memory(primary_[op.inputs[0]]).axis;
  if (axis >= 0 && isReduced(op, axis, rank)) {
    for (axis = rank - 1; axis >= 0 && isReduced(op, axis, rank); --axis) {
    }
  }
  const size_t input = want(op.inputs[0], axis);
  const int64_t others = rank - (axis >= 0);
  TORCH_CHECK(
      others <= 3 || (others == 4 && !isReduced(op, axis == 0 ? 1 : 0, rank)), op.name,
      " (mean) goes over the first of ", rank, " axes, which a plan cannot do");
  emit(Does::Compute, index, {input}, axisBehind(op, axis, rank));
}

// Of float32, which goes over channels as over all other axes.
void Lowering::lowerReduction(size_t index) {
  const Operator& op = program_.operators[index];
  const int64_t rank = sizes_[op.inputs[0]].size(), own = ownAxis(op), axis = own < 0 ? rank - 1 : own;
  emit(Does::Compute, index, {want(op.inputs[0], axis)}, axisBehind(op, axis, rank));
}

void Lowering::lowerAffine(size_t index) {
  const Operator& op = program_.operators[index];
  const auto operands = wantAll(op);
  if (program_.grids[op.output].is_float) {
    return emit(Does::Compute, index, operands, kAffineAxis);
  }
  const bool several = operands.size() > 1;
  const size_t input = several ? joins_.place(result_, index, operands, kAffineAxis) : operands[0];
  emitWithTable(Does::Convolve, index, {input}, kAffineAxis);
}

void Lowering::lowerRecurrent(size_t index) {
  lowerChannels(index);
  result_.steps.back().packed = weights_.packed(program_, program_.operators[index], true);
}

// Finds the borders that convolutions read around their operands.
void Lowering::findBorders() {
  for (Step& step : result_.steps) {
    const Operator& op = program_.operators[step.index];
    if (step.does != Does::Convolve && step.does != Does::ConvolveTransposed &&
        (step.does != Does::ToFloats || isLinear(op.kind))) {
      continue;
    }
    const Memory& in = memory(step.inputs[0]);
    Sizes widths; // of what an affine operator reads
    for (size_t i = 0; isAffine(op.kind) && i < op.inputs.size(); ++i) {
      widths.push_back(sizes_[op.inputs[i]][kAffineAxis]);
    }
    step.packed = weights_.packed(program_, op, in.is != Is::Slice, widths);
    if (!isLinear(op.kind)) {
      const Memory& out = memory(step.output);
      const Border border = borderOf(
          op, *step.packed, imageOf(imageDims(in.sizes, in.axis), in.sizes, in.channels()),
          imageOf(imageDims(out.sizes, out.axis), out.sizes, out.channels()));
      size_t whole = step.inputs[0]; // a slice has the border of what it is one of
      while (memory(whole).is == Is::Slice) {
        whole = memory(whole).parent;
      }
      widen(memory(whole).border, border);
    }
  }
}

// A value has the bytes of another where both are dense; else it is copied, through one that is.
void Lowering::settleNames() {
  std::vector<Step> steps;
  for (Step& step : result_.steps) {
    if (step.does != Does::Rename) {
      steps.push_back(std::move(step));
      continue;
    }
    size_t input = step.inputs[0];
    const auto copy = [&](size_t from, size_t to) {
      Step made{.does = Does::Copy, .index = step.index, .inputs = {from}, .output = to};
      made.axes = identity(memory(to).sizes.size());
      steps.push_back(std::move(made));
    };
    const Memory from = memory(input), to = memory(step.output);
    if (from.is == Is::Slice || from.border != Border{}) {
      const size_t dense = addMemory({.sizes = from.sizes, .axis = from.axis, .grid = from.grid});
      copy(input, dense);
      input = dense;
    }
    memory(step.output).parent = input;
    if (to.border != Border{}) {
      const size_t dense =
          addMemory({.sizes = to.sizes, .axis = to.axis, .grid = to.grid, .is = Is::Same, .parent = input});
      memory(step.output).is = Is::Own;
      copy(dense, step.output);
    }
  }
  result_.steps = std::move(steps);
}

// A float32 value that lies in memory as it is returned is computed right there.
void Lowering::placeResults() {
  std::erase_if(result_.steps, [&](const Step& step) {
    if (step.does != Does::Exit) {
      return false;
    }
    const Memory& value = memory(step.inputs[0]);
    Sizes order = result_.orders[step.output];
    std::erase_if(order, [&](int64_t axis) { return value.sizes[axis] == 1; });
    size_t id = step.inputs[0];
    while (memory(id).is == Is::Same) {
      id = memory(id).parent;
    }
    Memory& owner = memory(id);
    const bool there = value.grid->is_float && orderOf(value.sizes, value.axis) == order &&
                       owner.is == Is::Own && owner.home == 0;
    owner.home = there ? 1 + program_.inputs + step.output : owner.home;
    return there;
  });
}

std::optional<int64_t> channelAxis(const Operator& op, int64_t rank) {
  const auto channels = declarationOf(op.kind).channels;
  return channels ? std::optional(channels(op, rank)) : std::nullopt;
}

int64_t Values::emitWithTable(Does does, size_t index, std::vector<size_t> inputs, int64_t axis) {
  emit(does, index, std::move(inputs), axis);
  const int64_t value = program_.operators[index].output;
  const auto& uses = uses_[value];
  if (uses.size() != 1 || uses[0] == SIZE_MAX) {
    return value;
  }
  const Operator& reader = program_.operators[uses[0]];
  Step& step = result_.steps.back();
  if (reader.kind == Kind::Table) {
    step.table = reader.tensors[0].const_data_ptr<uint8_t>();
  } else if (reader.kind == Kind::Function && (does == Does::ToFloats || does == Does::Product)) {
    step.function = functionOf(reader);
  } else {
    return value;
  }
  fused_.insert(uses[0]);
  primary_[reader.output] = step.output;
  memory(step.output).grid = &program_.grids[reader.output];
  return reader.output;
}

Lowered lower(
    const Program& program, const std::vector<Sizes>& sizes, const std::vector<bool>& contiguous,
    std::vector<Sizes> orders, Weights& weights) {
  return Lowering(program, sizes, contiguous, weights).run(std::move(orders));
}

} // namespace jit_passes::x86
