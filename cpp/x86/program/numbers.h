// Attributes that the model computes from sizes: reshapes into windows, paddings to a multiple.
#pragma once

#include "shapes.h"

namespace jit_passes::x86 {

// Limits for the number of numbers, and for the depth of their dependencies.
constexpr int64_t kMostNumbers = int64_t{1} << 20, kMostDepth = 256;

// Larger than any end of a slice. Ends beyond it are clamped to it, so that arithmetic on ends cannot overflow.
constexpr int64_t kFar = int64_t{1} << 40;

// Throws if a number depends on itself, on a later number, or on a value that does not exist.
void checkNumbersOf(const Program& program);

// Visits the values whose sizes a number depends on. `seen` marks the numbers that were visited.
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

// The program for inputs of these sizes, with all numbers computed. Nothing if there are no numbers to compute. A
// negative padding becomes a slice in front of the padding.
std::optional<Program> withNumbers(const Program& program, const std::vector<Sizes>& inputs);

} // namespace jit_passes::x86
