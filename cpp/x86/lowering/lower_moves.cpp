#include "lowering.h"

namespace jit_passes::x86 {
namespace {

bool isRolled(const Operator& roll, int64_t axis, int64_t rank) {
  const auto axes = roll.attributes.begin() + roll.attributes.size() / 2;
  return std::any_of(
      axes, roll.attributes.end(), [&](int64_t rolled) { return axisOf(rolled, rank) == axis; });
}

bool sameGrid(const Grid& a, const Grid& b) { return a.scale == b.scale && a.zero_point == b.zero_point; }

} // namespace

int64_t restingAxis(const Operator& roll, int64_t rank) {
  int64_t axis = rank - 1;
  while (axis >= 0 && isRolled(roll, axis, rank)) {
    --axis;
  }
  return axis;
}

void Moves::lowerConcat(size_t index) {
  const Operator& op = program_.operators[index];
  if (isShuffledAlone(op)) {
    joined_.emplace(op.output, &op);
    return;
  }
  const int64_t along = axisOf(op.attributes[0], sizes_[op.output].size());
  const int64_t axis = memory(primary_[op.inputs[0]]).axis;
  const Grid* grid = &program_.grids[op.output];
  std::vector<size_t> operands;
  for (const int64_t input : op.inputs) {
    operands.push_back(want(input, axis));
    if (along == axis && uses_[input].size() == 1 && !sameGrid(*memory(operands.back()).grid, *grid)) {
      rescale(operands.back(), grid);
    }
  }
  primary_[op.output] = joins_.place(result_, index, operands, axis);
}

// Lets the step that computes a value give codes of another grid, if it is one that has a table. Nobody else reads it.
void Moves::rescale(size_t id, const Grid* grid) {
  const auto maker = std::find_if(
      result_.steps.begin(), result_.steps.end(), [&](const Step& step) { return step.output == id; });
  const auto hasTable = [](const Step& step) {
    return step.elementwise || step.does == Does::Convolve || step.does == Does::ConvolveTransposed;
  };
  if (maker == result_.steps.end() || !hasTable(*maker)) {
    return;
  }
  at::Tensor table = rescaled(*memory(id).grid, *grid);
  if (maker->table) {
    const auto codes = at::from_blob(const_cast<uint8_t*>(maker->table), {256}, at::kByte);
    table = table.index_select(0, codes.to(at::kInt));
  }
  maker->own_tables = {table};
  maker->table = table.const_data_ptr<uint8_t>();
  memory(id).grid = grid;
}

// Channels are padded as one of the other axes.
void Moves::lowerPad(size_t index) {
  const Operator& op = program_.operators[index];
  const Sizes &from = sizes_[op.inputs[0]], &to = sizes_[op.output];
  int64_t axis = memory(primary_[op.inputs[0]]).axis;
  if (axis >= 0 && from[axis] != to[axis]) {
    for (axis = lastAxis(from); axis >= 0 && from[axis] != to[axis]; --axis) {
    }
  }
  const size_t input = want(op.inputs[0], axis);
  emit(Does::Compute, index, {input}, axis);
}

void Moves::lowerReshape(size_t index) {
  const Operator& op = program_.operators[index];
  const Sizes &from = sizes_[op.inputs[0]], &to = sizes_[op.output];
  size_t input = primary_[op.inputs[0]];
  int64_t axis = lastAxis(to);
  if (const int64_t own = memory(input).axis; !inOrder(orderOf(from, own))) {
    for (axis = lastAxis(to); axis >= 0; --axis) {
      if (to[axis] == from[own] && countInFront(to, axis) == countInFront(from, own)) {
        break;
      }
    }
    if (axis < 0) {
      input = want(op.inputs[0], lastAxis(from));
      axis = lastAxis(to);
    }
  }
  rename(index, input, axis);
}

void Moves::rename(size_t index, size_t input, int64_t axis) {
  emit(Does::Rename, index, {input}, axis);
  Memory& output = memory(result_.steps.back().output);
  output.is = Is::Same, output.parent = input;
}

void Moves::lowerPermute(size_t index) {
  const Operator& op = program_.operators[index];
  const size_t input = primary_[op.inputs[0]];
  const Sizes &from = sizes_[op.inputs[0]], &to = sizes_[op.output];
  const Sizes axes = permutationOf(op, from.size());
  const Sizes order = orderOf(from, memory(input).axis);
  for (int64_t axis = lastAxis(to); axis >= 0; --axis) {
    Sizes mapped = orderOf(to, axis);
    std::transform(mapped.begin(), mapped.end(), mapped.begin(), [&](int64_t i) { return axes[i]; });
    if (mapped == order) {
      return rename(index, input, axis);
    }
  }
  emit(Does::Copy, index, {input}, wanted_[op.output]);
  result_.steps.back().axes = axes;
}

// Elements are repeated as they are read.
void Moves::lowerExpand(size_t index) {
  const Operator& op = program_.operators[index];
  const Sizes &from = sizes_[op.inputs[0]], &to = sizes_[op.output];
  const int64_t more = int64_t(to.size()) - int64_t(from.size());
  Sizes axes(to.size(), -1);
  for (int64_t i = more; i < int64_t(to.size()); ++i) {
    axes[i] = from[i - more] == to[i] ? i - more : -1;
  }
  const size_t input = primary_[op.inputs[0]];
  const int64_t own = memory(input).axis;
  if (from == to) {
    return rename(index, input, own);
  }
  emit(Does::Copy, index, {input}, own < 0 ? lastAxis(to) : own + more);
  result_.steps.back().axes = axes;
}

// Along axes that are not innermost.
void Moves::lowerRoll(size_t index) {
  const Operator& op = program_.operators[index];
  const int64_t own = memory(primary_[op.inputs[0]]).axis, rank = sizes_[op.output].size();
  const int64_t axis = own >= 0 && !isRolled(op, own, rank) ? own : restingAxis(op, rank);
  emit(Does::Compute, index, {want(op.inputs[0], axis)}, axis);
}

size_t Moves::slice(size_t whole, const Grid* grid, int64_t start, int64_t length) {
  Memory part{.sizes = memory(whole).sizes, .axis = memory(whole).axis, .grid = grid, .is = Is::Slice};
  part.sizes[part.axis] = length, part.parent = whole, part.start = start;
  return addMemory(std::move(part));
}

// Channels are read where they are, and so is a whole axis, as `x[:, 0]` has it; other ranges are copies.
void Moves::lowerPart(size_t index) {
  const Operator& op = program_.operators[index];
  const Range range = rangeOf(op, sizes_[op.inputs[0]]);
  const size_t input = primary_[op.inputs[0]];
  const bool keeps = sizes_[op.output].size() == sizes_[op.inputs[0]].size();
  int64_t axis = memory(input).axis;
  if (range.step == 1 && sizes_[op.output] == sizes_[op.inputs[0]]) {
    return rename(index, input, axis);
  }
  if (axis == range.axis && range.step == 1 && keeps) {
    primary_[op.output] = slice(input, &program_.grids[op.output], range.start, range.length);
    return;
  }
  Sizes axes = identity(sizes_[op.inputs[0]].size());
  if (!keeps) {
    axes.erase(axes.begin() + range.axis);
    axis = axis == range.axis ? lastAxis(sizes_[op.output]) : axis - (range.axis < axis);
  }
  emit(Does::Copy, index, {input}, axis);
  result_.steps.back().axes = axes, result_.steps.back().range = range;
}

// Whether nothing but a shuffle of the parts reads it, which takes them from where they are.
bool Moves::isShuffledAlone(const Operator& concat) const {
  const auto& uses = uses_[concat.output];
  if (uses.size() != 1 || uses[0] == SIZE_MAX || program_.operators[uses[0]].kind != Kind::Shuffle) {
    return false;
  }
  const auto& attributes = program_.operators[uses[0]].attributes;
  const int64_t rank = sizes_[concat.output].size(), axis = axisOf(concat.attributes[0], rank);
  return axisOf(attributes[0], rank) == axis && attributes[1] == int64_t(concat.inputs.size()) &&
         std::all_of(concat.inputs.begin(), concat.inputs.end(), [&](int64_t part) {
           return sizes_[part][axis] == sizes_[concat.inputs[0]][axis];
         });
}

void Moves::lowerShuffle(size_t index) {
  const Operator& op = program_.operators[index];
  const Sizes& sizes = sizes_[op.output];
  const Grid& grid = program_.grids[op.output];
  const int64_t axis = axisOf(op.attributes[0], sizes.size()), parts = op.attributes[1];
  std::vector<size_t> inputs;
  if (const auto joined = joined_.find(op.inputs[0]); joined != joined_.end()) {
    for (const int64_t part : joined->second->inputs) {
      inputs.push_back(want(part, axis));
    }
  } else {
    const size_t whole = want(op.inputs[0], axis);
    for (int64_t part = 0, length = sizes[axis] / parts; part < parts; ++part) {
      inputs.push_back(slice(whole, &grid, part * length, length));
    }
  }
  std::vector<at::Tensor> tables;
  for (const size_t input : inputs) {
    const Grid& from = *memory(input).grid;
    tables.push_back(sameGrid(from, grid) ? at::Tensor() : rescaled(from, grid));
  }
  emit(Does::Compute, index, inputs, axis);
  result_.steps.back().own_tables = std::move(tables);
}

} // namespace jit_passes::x86
