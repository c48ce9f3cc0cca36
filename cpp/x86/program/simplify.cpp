#include "simplify.h"

#include "numbers.h"

namespace jit_passes::x86 {
namespace {

void absorbPaddings(std::vector<Operator>& operators) {
  using A = ConvolutionAttributes;
  std::unordered_map<int64_t, const Operator*> paddings; // by their result
  for (Operator& op : operators) {
    if (op.kind == Kind::Pad && op.computed.empty()) {
      paddings.emplace(op.output, &op);
    }
    const bool reads_codes = declarationOf(op.kind).layer == LayerKind::Convolution && !isDynamic(op.kind);
    const auto found = reads_codes ? paddings.find(op.inputs[0]) : paddings.end();
    if (found == paddings.end()) {
      continue;
    }
    const Operator& padding = *found->second;
    const auto own = [&](size_t i) -> int64_t& {
      return op.attributes[(i % 2 ? A::PadAfter : A::PadBefore) + 2 - i / 2];
    };
    bool fits = static_cast<int64_t>(padding.attributes.size()) <= 2 * op.attributes[A::Spatial];
    for (size_t i = 0; fits && i < padding.attributes.size(); ++i) {
      fits = own(i) + padding.attributes[i] <= kMostWindow;
    }
    if (!fits) {
      continue;
    }
    for (size_t i = 0; i < padding.attributes.size(); ++i) {
      own(i) += padding.attributes[i];
    }
    op.inputs[0] = padding.inputs[0];
  }
}

// Replaces an unflatten, transpose and flatten that split an axis of codes in two, swap both and join them by a
// shuffle.
void findShuffles(Program& program) {
  std::unordered_map<int64_t, const Operator*> makers; // by value
  const auto made = [&](const Operator& by, Kind kind) -> const Operator* {
    const auto found = makers.find(by.inputs[0]);
    return found != makers.end() && found->second->kind == kind ? found->second : nullptr;
  };
  const auto names = [](const Operator& op, int64_t axis) {
    const std::vector<int64_t>& a = op.attributes;
    return std::min(a[0], a[1]) == axis && std::max(a[0], a[1]) == axis + 1;
  };
  for (Operator& op : program.operators) {
    if (op.kind == Kind::Flatten && op.attributes[0] >= 0 && !program.grids[op.output].is_float) {
      const int64_t axis = op.attributes[0];
      const Operator* swap = names(op, axis) ? made(op, Kind::Transpose) : nullptr;
      const Operator* split = swap && names(*swap, axis) ? made(*swap, Kind::Unflatten) : nullptr;
      if (split && split->computed.empty() && split->attributes.size() == 3 && split->attributes[0] == axis &&
          split->attributes[1] > 0) {
        op.kind = Kind::Shuffle, op.inputs = split->inputs, op.attributes = {axis, split->attributes[1]};
      }
    }
    makers.emplace(op.output, &op);
  }
}

void removeUnused(Program& program) {
  std::vector<bool> used(program.grids.size());
  for (const int64_t output : program.outputs) {
    used[output] = true;
  }
  std::vector<Operator> kept;
  std::vector<bool> needed(program.numbers.size());
  for (size_t i = program.operators.size(); i-- > 0;) {
    Operator& op = program.operators[i];
    if (!used[op.output]) {
      continue;
    }
    for (const int64_t input : op.inputs) {
      used[input] = true;
    }
    for (const auto& [attribute, number] : op.computed) {
      forEachSized(program, number, needed, [&](int64_t value) { used[value] = true; });
    }
    kept.push_back(std::move(op));
  }
  program.operators.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
  if (std::ranges::find(needed, true) == needed.end()) {
    program.numbers.clear();
  }
  for (size_t i = 0; i < program.numbers.size(); ++i) {
    program.numbers[i] = needed[i] ? program.numbers[i] : Number{Number::How::Constant}; // its value is gone
  }
}

} // namespace

void simplify(Program& program) {
  absorbPaddings(program.operators);
  findShuffles(program);
  removeUnused(program);
}

} // namespace jit_passes::x86
