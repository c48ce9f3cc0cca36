// Attributes that the model computes of sizes: reshapes of a window, paddings to a multiple.
#pragma once

#include "shapes.h"

namespace jit_passes::x86 {

// As many there may be, and so deep they lie within one another.
constexpr int64_t kMostNumbers = int64_t{1} << 20, kMostDepth = 256;

// Throws where a number is made of others than those before it, or of what is no value.
void checkNumbersOf(const Program& program);

// Visits the values whose sizes a number follows from. `seen` has those numbers that were visited.
template <typename Visit>
void forEachSized(const Program& program, int64_t number, std::vector<bool>& seen, const Visit& visit) {
  if (seen[number]) {
    return;
  }
  seen[number] = true;
  const Number& of = program.numbers[number];
  if (of.how == Number::How::Size || of.how == Number::How::Sizes) {
    visit(of.a);
  } else if (of.how != Number::How::Constant) {
    forEachSized(program, of.a, seen, visit);
    forEachSized(program, of.b, seen, visit);
  }
}

// The program for inputs of these sizes, with nothing left to compute. Nothing where all is known anyway. A padding
// that cuts off becomes one behind slices.
std::optional<Program> withNumbers(const Program& program, const std::vector<Sizes>& inputs);

} // namespace jit_passes::x86
