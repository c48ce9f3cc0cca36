// A step with the memory that it reads and writes, for the function that makes its kernel: Declaration::kernel.
#pragma once

#include "decode.h"

namespace jit_passes::x86 {

struct StepContext {
  const Operator& op;
  const Step& step;
  const std::vector<Memory>& memory;
  Form form; // for kernels that read data packed by others

  const Memory& in(size_t i = 0) const { return memory[step.inputs[i]]; }
  const Memory& out() const { return memory[step.output]; }
  // The grid of the result before a table.
  const Grid& grid() const { return *step.grid; }

  // The part of a kernel that works element by element.
  template <typename Kernel>
  Part unary(const Kernel& kernel) const {
    const Dims dims = pixelDims(out().sizes, out().axis);
    return x86::unary(kernel, image(in(), dims), image(out(), dims));
  }

  // The part of a float32 kernel that works over the channels of each pixel. The operand may be codes.
  template <typename Kernel>
  Part ofRows(const Kernel& kernel) const {
    const Dims dims = pixelDims(out().sizes, out().axis);
    const Placed x = image(in(), dims), y = image(out(), dims);
    return {
        kernel.items(y.image),
        [=, decode = Decode::of(*in().grid)](const Call& call, int64_t begin, int64_t end) {
          const auto run = [&](const Image& from, const Image& to, int64_t first, int64_t last) {
            kernel.run(from, to, first, last);
          };
          decode.run(x.in(call), begin, end, run, y.in(call));
        }};
  }

  // The memory of a step's float32 result and of its result in codes; one may be null.
  std::pair<const Memory*, const Memory*> floatsAndCodes() const {
    if (out().grid->is_float) {
      return {&out(), nullptr};
    }
    return {step.kept ? &memory[*step.kept] : nullptr, &out()};
  }
};

} // namespace jit_passes::x86
