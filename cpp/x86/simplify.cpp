#include "simplify.h"

namespace jit_passes::x86 {
namespace {

void absorbPaddings(std::vector<Operator>& operators) {
  using A = ConvolutionAttributes;
  std::unordered_map<int64_t, const Operator*> paddings; // by the value that they make
  for (Operator& op : operators) {
    if (op.kind == Kind::Pad) {
      paddings.emplace(op.output, &op);
    }
    const auto found = op.kind == Kind::Convolution ? paddings.find(op.inputs[0]) : paddings.end();
    if (found == paddings.end()) {
      continue;
    }
    const Operator& padding = *found->second;
    if (static_cast<int64_t>(padding.attributes.size()) > 2 * op.attributes[A::Spatial]) {
      continue;
    }
    for (size_t i = 0; i < padding.attributes.size(); ++i) {
      op.attributes[(i % 2 ? A::PadAfter : A::PadBefore) + 2 - i / 2] += padding.attributes[i];
    }
    op.inputs = padding.inputs;
  }
}

void removeUnused(Program& program) {
  std::vector<bool> used(program.grids.size());
  for (const int64_t output : program.outputs) {
    used[output] = true;
  }
  std::vector<Operator> kept;
  for (size_t i = program.operators.size(); i-- > 0;) {
    Operator& op = program.operators[i];
    if (!used[op.output]) {
      continue;
    }
    for (const int64_t input : op.inputs) {
      if (op.kind != Kind::Quantize) { // whose input is one of the plan's
        used[input] = true;
      }
    }
    kept.push_back(std::move(op));
  }
  program.operators.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
}

} // namespace

void simplify(Program& program) {
  absorbPaddings(program.operators);
  removeUnused(program);
}

} // namespace jit_passes::x86
