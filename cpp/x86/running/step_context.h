// A step with the memory that it reads and writes, for the function that makes its kernel ready: Declaration::kernel.
#pragma once

#include "placed.h"

namespace jit_passes::x86 {

struct StepContext {
  const Operator& op;
  const Step& step;
  const std::vector<Memory>& memory;
  Form form; // of kernels that read data packed by others

  const Memory& in(size_t i = 0) const { return memory[step.inputs[i]]; }
  const Memory& out() const { return memory[step.output]; }
  // Of the result before a table.
  const Grid& grid() const { return *step.grid; }

  // A kernel that goes over each element of its operand.
  template <typename Kernel>
  Part unary(const Kernel& kernel) const {
    const Dims dims = pixelDims(out().sizes, out().axis);
    return x86::unary(kernel, image(in(), dims), image(out(), dims));
  }

  // The float32 and the codes that a step gives, one or both.
  std::pair<const Memory*, const Memory*> floatsAndCodes() const {
    if (out().grid->is_float) {
      return {&out(), nullptr};
    }
    return {step.kept ? &memory[*step.kept] : nullptr, &out()};
  }
};

} // namespace jit_passes::x86
