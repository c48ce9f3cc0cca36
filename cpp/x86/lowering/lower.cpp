#include "lower.h"

#include "arena.h"
#include "fuse.h"
#include "lowering.h"
#include "x86/program/declaration.h"

namespace jit_passes::x86 {

Lowered Lowering::run(std::vector<Sizes> orders) {
  result.orders = std::move(orders);
  readUses();
  findViews();
  for (size_t index = 0; index < program.operators.size(); ++index) {
    if (!fused.count(index) && !isView(index) && !unread.count(index)) {
      lowerOperator(index);
    }
  }
  for (size_t number = 0; number < program.outputs.size(); ++number) {
    if (numberSpread(program, program.outputs[number])) {
      continue;
    }
    push({.does = Does::Exit, .index = 0, .inputs = {primary[program.outputs[number]]}, .output = number});
  }
  findBorders();
  settleNames();
  placeResults();
  joinBlocks(result, program);
  nameBlocks(result);
  fuseChains(result);
  placeMemory(result);
  return std::move(result);
}

// Finds the readers of each value, and the innermost axis that the first reader needs.
void Lowering::readUses() {
  const size_t count = program.grids.size();
  uses.resize(count), wanted.assign(count, -2), primary.resize(count);
  std::vector<bool> returned(count); // results of the plan that need memory
  for (const int64_t output : program.outputs) {
    returned[output] = !numberSpread(program, output);
  }
  for (size_t index = program.operators.size(); index-- > 0;) {
    const Operator& op = program.operators[index];
    const bool spreads = op.kind == Kind::Constant || op.kind == Kind::Expand;
    if (spreads && uses[op.output].empty() && !returned[op.output]) {
      unread.insert(index);
      continue;
    }
    for (const int64_t input : op.inputs) {
      uses[input].push_back(index);
      const int64_t rank = sizes[input].size();
      if (isDynamic(op.kind) && isConvolution(op.kind)) {
        wanted[input] = lastAxis(sizes[input]); // any axis: the codes get their own order
      } else if (const auto axis = channelAxis(op, rank)) {
        wanted[input] = *axis;
      } else if (sizes[op.output].size() == sizes[input].size() && wanted[op.output] != -2) {
        wanted[input] = wanted[op.output];
      } else if (const auto prefers = declarationOf(op.kind).prefers) {
        wanted[input] = prefers(op, rank);
      }
    }
  }
  for (size_t value = 0; value < count; ++value) {
    if (wanted[value] == -2) {
      const size_t rank = sizes[value].size();
      wanted[value] = rank == 4 || rank == 5 ? 1 : lastAxis(sizes[value]);
    }
  }
  for (const int64_t output : program.outputs) {
    if (returned[output]) {
      uses[output].push_back(SIZE_MAX);
    }
  }
}

void Lowering::findViews() {
  makers.resize(program.grids.size());
  for (size_t index = program.operators.size(); index-- > 0;) {
    const Operator& op = program.operators[index];
    makers[op.output] = index;
    const auto& uses = this->uses[op.output];
    const bool viewed =
        declarationOf(op.kind).views && std::all_of(uses.begin(), uses.end(), [&](size_t use) {
          return use != SIZE_MAX && (program.operators[use].kind == Kind::MatrixProduct || isView(use));
        });
    if (viewed && !uses.empty()) {
      views.insert(index);
    }
  }
}

void Lowering::lowerOperator(size_t index) {
  declarationOf(program.operators[index].kind).lower(*this, index);
}

size_t Lowering::want(int64_t value, int64_t axis) {
  const size_t id = primary[value];
  const Memory from = memory(id);
  if (from.axis == axis) {
    return id;
  }
  const auto [found, added] = copies.emplace(std::pair(value, axis), 0);
  if (added) {
    Memory to{.sizes = from.sizes, .axis = axis, .grid = from.grid};
    Step step{.does = Does::Copy, .index = 0, .inputs = {id}, .output = 0};
    if (orderOf(from.sizes, from.axis) == orderOf(from.sizes, axis)) {
      to.is = Memory::Is::Same, to.parent = id;
      step.does = Does::Rename;
    } else {
      step.axes = identity(from.sizes.size());
    }
    step.output = found->second = addMemory(to);
    push(step);
  }
  return found->second;
}

void Lowering::emit(Does does, size_t index, std::vector<size_t> inputs, int64_t axis) {
  const Operator& op = program.operators[index];
  TORCH_CHECK(
      does != Does::Compute || declarationOf(op.kind).kernel, "the operator '", nameOf(op.kind),
      "' of plans has a step that computes, and no kernel: set `kernel` in its declaration");
  const size_t output = addMemory(op.output, axis);
  push(
      {.does = does,
       .index = index,
       .inputs = std::move(inputs),
       .output = output,
       .elementwise = does == Does::Compute && declarationOf(op.kind).elementwise,
       .grid = memory(output).grid});
}

namespace {

// Whether a step can apply a function to its float32 result.
bool takesFunction(Does does, Kind kind) {
  return does == Does::ToFloats || does == Does::Product || (does == Does::Compute && isLinear(kind));
}

} // namespace

int64_t Lowering::emitWithTable(Does does, size_t index, std::vector<size_t> inputs, int64_t axis) {
  emit(does, index, std::move(inputs), axis);
  const int64_t value = program.operators[index].output;
  const auto& uses = this->uses[value];
  if (uses.size() != 1 || uses[0] == SIZE_MAX) {
    return value;
  }
  const Operator& reader = program.operators[uses[0]];
  Step& step = result.steps.back();
  if (reader.kind == Kind::Table) {
    step.table = reader.tensors[0].const_data_ptr<uint8_t>();
  } else if (reader.kind == Kind::Function && takesFunction(does, program.operators[index].kind)) {
    step.function = functionOf(reader);
  } else {
    return value;
  }
  fused.insert(uses[0]);
  primary[reader.output] = step.output;
  memory(step.output).grid = &program.grids[reader.output];
  return reader.output;
}

bool Lowering::emitQuantize(int64_t value) {
  const auto& uses = this->uses[value];
  if (uses.size() != 1 || !isQuantize(uses[0])) {
    return false;
  }
  const size_t output = result.steps.back().output;
  const int64_t codes = program.operators[uses[0]].output;
  fused.insert(uses[0]);
  primary[codes] = output;
  memory(output).grid = &program.grids[codes];
  return true;
}

void Lowering::rename(size_t index, size_t input, int64_t axis) {
  emit(Does::Rename, index, {input}, axis);
  Memory& output = memory(result.steps.back().output);
  output.is = Memory::Is::Same, output.parent = input;
}

size_t Lowering::slice(size_t whole, const Grid* grid, int64_t start, int64_t length) {
  Memory part{
      .sizes = memory(whole).sizes, .axis = memory(whole).axis, .grid = grid, .is = Memory::Is::Slice};
  part.sizes[part.axis] = length, part.parent = whole, part.start = start;
  return addMemory(std::move(part));
}

std::vector<size_t> Lowering::wantAll(const Operator& op) {
  std::vector<size_t> operands;
  for (const int64_t input : op.inputs) {
    operands.push_back(want(input, neededAxis(op, sizes[input].size())));
  }
  return operands;
}

// Packs the weights of layers, and finds the borders that convolutions read around their operands.
void Lowering::findBorders() {
  for (Step& step : result.steps) {
    const Operator& op = program.operators[step.index];
    if (step.does != Does::Convolve && step.does != Does::ConvolveTransposed &&
        (step.does != Does::ToFloats || (isLinear(op.kind) && isDynamic(op.kind)))) {
      continue;
    }
    const Memory& in = memory(step.inputs[0]);
    Sizes widths; // the channels of each operand of an affine operator
    for (size_t i = 0; isAffine(op.kind) && i < op.inputs.size(); ++i) {
      widths.push_back(sizes[op.inputs[i]][kAffineAxis]);
    }
    step.packed = weights.packed(program, op, in.is != Memory::Is::Slice, widths);
    if (!isLinear(op.kind)) {
      const Memory& out = memory(step.output);
      const Border border = borderOf(
          op, *step.packed, imageOf(imageDims(in.sizes, in.axis), in.sizes, in.channels()),
          imageOf(imageDims(out.sizes, out.axis), out.sizes, out.channels()));
      size_t whole = step.inputs[0]; // a slice has the border of the whole value
      while (memory(whole).is == Memory::Is::Slice) {
        whole = memory(whole).parent;
      }
      widen(memory(whole).border, border);
    }
  }
}

// Lets a renamed value share the bytes of its operand if both are dense. Else it is copied, through a dense value.
void Lowering::settleNames() {
  std::vector<Step> steps;
  for (Step& step : result.steps) {
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
    if (from.is == Memory::Is::Slice || from.border != Border{}) {
      const size_t dense = addMemory({.sizes = from.sizes, .axis = from.axis, .grid = from.grid});
      copy(input, dense);
      input = dense;
    }
    memory(step.output).parent = input;
    if (to.border != Border{}) {
      const size_t dense = addMemory(
          {.sizes = to.sizes, .axis = to.axis, .grid = to.grid, .is = Memory::Is::Same, .parent = input});
      memory(step.output).is = Memory::Is::Own;
      copy(dense, step.output);
    }
  }
  result.steps = std::move(steps);
}

// Computes a float32 output directly in the returned tensor, if its memory order is the value's.
void Lowering::placeResults() {
  std::erase_if(result.steps, [&](const Step& step) {
    if (step.does != Does::Exit) {
      return false;
    }
    const Memory& value = memory(step.inputs[0]);
    Sizes order = result.orders[step.output];
    std::erase_if(order, [&](int64_t axis) { return value.sizes[axis] == 1; });
    size_t id = step.inputs[0];
    while (memory(id).is == Memory::Is::Same) {
      id = memory(id).parent;
    }
    Memory& owner = memory(id);
    const bool there = value.grid->is_float && orderOf(value.sizes, value.axis) == order &&
                       owner.is == Memory::Is::Own && owner.home == 0;
    owner.home = there ? 1 + program.inputs + step.output : owner.home;
    return there;
  });
}

std::optional<int64_t> channelAxis(const Operator& op, int64_t rank) {
  const auto channels = declarationOf(op.kind).channels;
  return channels ? std::optional(channels(op, rank)) : std::nullopt;
}

int64_t neededAxis(const Operator& op, int64_t rank) {
  const auto axis = channelAxis(op, rank);
  TORCH_CHECK(
      axis.has_value(), "the operator '", nameOf(op.kind),
      "' of plans is lowered with an axis innermost, and names none: set `channels` in its declaration");
  return *axis;
}

void requireInputs(const Operator& op, size_t least) {
  TORCH_CHECK(
      op.inputs.size() >= least, "the operator '", nameOf(op.kind), "' of plans is lowered with ", least,
      " operands, and reads ", op.inputs.size(), ": set `inputs` in its declaration");
}

Lowered lower(
    const Program& program, const std::vector<Sizes>& sizes, const std::vector<bool>& contiguous,
    std::vector<Sizes> orders, Weights& weights) {
  return Lowering(program, sizes, contiguous, weights).run(std::move(orders));
}

} // namespace jit_passes::x86
