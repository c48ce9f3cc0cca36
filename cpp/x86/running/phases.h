// From steps to phases: functions that the files of this folder share.
#pragma once

#include "placed.h"

namespace jit_passes::x86 {

// Makes the kernels of all steps. `scratch` becomes the size of the memory that each thread needs besides.
std::vector<Phase> phasesOf(const Program& program, Lowered lowered, int64_t& scratch);

// A phase without parts, with the facts for a profile.
Phase describe(const Program& program, const Lowered& lowered, const Step& step);

// A convolution without its operands.
struct Layer {
  std::shared_ptr<const Packed> packed;
  Requantize requantize; // without the residual
  std::optional<Placed> residual;
  size_t kernel = 0; // the number of the packed kernel

  int64_t items(const Image& x, const Image& y) const;
  // Adds `other` if there is a residual.
  void run(const Image& x, const Image& y, const Image& other, int64_t begin, int64_t end) const;
};

// `view` gives the image of a memory.
Layer layerOf(const Lowered& lowered, const Step& step, const std::function<Placed(const Memory&)>& view);

// The part of a convolution, or of another step with weights.
Part convolve(const Program& program, const Lowered& lowered, const Step& step);
// The part of a chain. Enlarges `scratch` to the size that a thread needs.
Part chained(const Lowered& lowered, const Step& step, int64_t& scratch);
// The phase of all time steps, or one phase for each.
std::vector<Phase> recurrent(
    const Program& program, const Lowered& lowered, const Step& step, int64_t& scratch);
std::vector<Part> convolveTransposed(const Program& program, const Lowered& lowered, const Step& step);

} // namespace jit_passes::x86
