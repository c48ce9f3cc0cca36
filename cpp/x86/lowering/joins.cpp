#include "joins.h"

#include <span>

#include "x86/program/declaration.h"

namespace jit_passes::x86 {
namespace {

using Is = Memory::Is;

} // namespace

std::optional<Program> withoutEmptyParts(const Program& program, const std::vector<Sizes>& inputs) {
  const auto sizes = inferSizes(program, inputs);
  const auto isEmpty = [&](int64_t value) { return isJoinedWithAny(sizes[value]); };
  const auto isShortened = [&](const Operator& op) {
    return declarationOf(op.kind).joins != nullptr && !isEmpty(op.output) &&
           std::ranges::any_of(op.inputs, isEmpty);
  };
  if (std::ranges::none_of(program.operators, isShortened)) {
    return std::nullopt;
  }
  Program filled = program;
  for (Operator& op : filled.operators) {
    if (isShortened(op)) {
      std::erase_if(op.inputs, isEmpty);
    }
  }
  return filled;
}

Joins::Joins(const Program& program, const std::vector<Sizes>& sizes) : program_(program) {
  for (size_t index = 0; index < program.operators.size(); ++index) {
    const Operator& op = program.operators[index];
    if (const auto joins = declarationOf(op.kind).joins) {
      add(index, joins(op, int64_t(sizes[op.output].size())), isAffine(op.kind), sizes);
    } else if (isConvolution(op.kind)) {
      bordered_.insert(op.inputs[0]);
    }
  }
  findWholes();
}

void Joins::add(size_t index, int64_t along, bool as_they_are, const std::vector<Sizes>& sizes) {
  const Operator& op = program_.operators[index];
  List list{along, {},   sizes[op.output], &program_.grids[as_they_are ? op.inputs[0] : op.output],
            false, index};
  for (const int64_t value : op.inputs) {
    const Grid& grid = as_they_are ? program_.grids[value] : *list.grid;
    list.entries.emplace_back(value, grid.scale, grid.zero_point);
    list.mixed = list.mixed || grid.zero_point != list.grid->zero_point;
  }
  lists_.emplace(index, std::move(list));
}

// In lexicographic order, a list stands right before the lists that begin with it.
void Joins::findWholes() {
  std::vector<std::pair<size_t, List*>> order;
  for (auto& [index, list] : lists_) {
    order.emplace_back(index, &list);
  }
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) {
    return std::tie(a.second->along, a.second->entries) < std::tie(b.second->along, b.second->entries);
  });
  for (size_t i = order.size(); i-- > 1;) {
    List &list = *order[i - 1].second, &next = *order[i].second;
    if (list.along == next.along && list.entries.size() <= next.entries.size() &&
        std::ranges::equal(list.entries, std::span(next.entries).first(list.entries.size()))) {
      list.whole = next.whole;
    }
  }
}

size_t Joins::place(Lowered& lowered, size_t index, const std::vector<size_t>& operands, int64_t axis) {
  const List& list = lists_.at(index);
  const size_t whole = list.along == axis ? list.whole : index;
  const auto [found, added] = buffers_.try_emplace({whole, axis}, Buffer{lowered.memory.size()});
  Buffer& buffer = found->second;
  const List& all = lists_.at(whole);
  if (added) {
    lowered.memory.push_back({.sizes = all.sizes, .axis = axis, .grid = all.grid});
  }
  int64_t start = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    const int64_t size = lowered.memory[operands[i]].sizes[list.along];
    if (i >= buffer.filled) {
      put(lowered, index, i, operands[i], start, buffer);
    }
    start += size;
  }
  buffer.filled = std::max(buffer.filled, operands.size());
  if (operands.size() == all.entries.size()) {
    return buffer.memory;
  }
  lowered.memory.push_back(
      {.sizes = list.sizes, .axis = axis, .grid = list.grid, .is = Is::Slice, .parent = buffer.memory});
  return lowered.memory.size() - 1;
}

void Joins::put(
    Lowered& lowered, size_t index, size_t entry, size_t operand, int64_t start, const Buffer& buffer) {
  const List& list = lists_.at(index);
  const auto& [value, scale, zero_point] = list.entries[entry];
  Memory& part = lowered.memory[operand];
  const Memory& whole = lowered.memory[buffer.memory];
  const bool same = part.grid->scale == scale && part.grid->zero_point == zero_point;
  // A border has one zero point, which cannot be right for values with different ones.
  const bool apart = lists_.at(list.whole).mixed && bordered_.count(value) > 0;
  if (same && list.along == whole.axis && part.is == Is::Own && part.home == 0 && !apart &&
      operand != buffer.memory) {
    part.is = Is::Slice, part.parent = buffer.memory, part.start = start;
    return;
  }
  Step step{.does = Does::Copy, .index = index, .inputs = {operand}, .output = buffer.memory};
  step.axes.resize(part.sizes.size());
  std::iota(step.axes.begin(), step.axes.end(), 0);
  step.along = list.along, step.start = start;
  if (!same) {
    step.own_tables = {rescaled(*part.grid, *list.grid)};
    step.table = step.own_tables[0].const_data_ptr<uint8_t>();
  }
  lowered.steps.push_back(std::move(step));
}

namespace {

bool isDense(const Memory& memory) {
  return (memory.is == Is::Own || memory.is == Is::Block) && memory.border == Border{};
}

// Whether elements with one index along an axis are neighbours.
bool hasBlocks(const Memory& memory, int64_t along) {
  for (int64_t axis = 0; axis < int64_t(memory.sizes.size()); ++axis) {
    const bool outside = axis != along && (along == memory.axis || (axis < along && axis != memory.axis));
    if (outside && memory.sizes[axis] != 1) {
      return false;
    }
  }
  return true;
}

// The memory of which a memory is another name.
Memory& withoutNames(Lowered& lowered, size_t id) {
  while (lowered.memory[id].is == Is::Same) {
    id = lowered.memory[id].parent;
  }
  return lowered.memory[id];
}

} // namespace

void joinBlocks(Lowered& lowered, const Program& program) {
  std::erase_if(lowered.steps, [&](const Step& step) {
    if (step.does != Does::Copy || declarationOf(program.operators[step.index].kind).joins == nullptr ||
        step.table != nullptr) {
      return false;
    }
    const Memory& part = lowered.memory[step.inputs[0]];
    const Memory& whole = lowered.memory[step.output];
    Memory& owner = withoutNames(lowered, step.inputs[0]);
    const bool there = owner.is == Is::Own && owner.home == 0 && &owner != &whole && isDense(owner) &&
                       isDense(whole) && part.border == Border{} && part.axis == whole.axis && part.grid &&
                       whole.grid && part.bytes() == whole.bytes() && countOf(whole.sizes) > 0 &&
                       hasBlocks(whole, step.along);
    if (there) {
      owner.is = Is::Block, owner.parent = step.output;
      owner.start = step.start * (countOf(whole.sizes) / whole.sizes[step.along]);
    }
    return there;
  });
}

void nameBlocks(Lowered& lowered) {
  std::erase_if(lowered.steps, [&](const Step& step) {
    if (step.does != Does::Copy || !step.range || step.range->step != 1 || step.table != nullptr) {
      return false;
    }
    const Memory& whole = lowered.memory[step.inputs[0]];
    Memory& part = lowered.memory[step.output];
    const int64_t along = step.range->axis;
    const bool goes = part.sizes.size() < whole.sizes.size(); // the axis does
    Sizes axes = identity(whole.sizes.size());
    if (goes) {
      axes.erase(axes.begin() + along);
    }
    const int64_t axis = whole.axis - (goes && along < whole.axis);
    const bool there = step.axes == axes && step.start == 0 && whole.axis != along && part.axis == axis &&
                       part.is == Is::Own && part.home == 0 && part.border == Border{} &&
                       isDense(withoutNames(lowered, step.inputs[0])) && part.grid && whole.grid &&
                       part.bytes() == whole.bytes() && countOf(part.sizes) > 0 && hasBlocks(whole, along);
    if (there) {
      part.is = Is::Block, part.parent = step.inputs[0];
      part.start = step.range->start * (countOf(whole.sizes) / whole.sizes[along]);
    }
    return there;
  });
}

} // namespace jit_passes::x86
