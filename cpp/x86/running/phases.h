// How steps become phases: pieces that those who make them share.
#pragma once

#include "placed.h"

namespace jit_passes::x86 {

// Makes kernels of the steps. `scratch` becomes the bytes that each thread needs besides.
std::vector<Phase> phasesOf(const Program& program, Lowered lowered, int64_t& scratch);

// A phase without parts, with what a profile says about it.
Phase describe(const Program& program, const Lowered& lowered, const Step& step);

// A convolution with everything but its operands.
struct Layer {
  std::shared_ptr<const Packed> packed;
  Requantize requantize; // but for the residual
  std::optional<Placed> residual;
  size_t kernel = 0; // which of those that are packed

  int64_t items(const Image& x, const Image& y) const;
  // `other` is added, if there is a residual.
  void run(const Image& x, const Image& y, const Image& other, int64_t begin, int64_t end) const;
};

// `view`: how memory is an image.
Layer layerOf(const Lowered& lowered, const Step& step, const std::function<Placed(const Memory&)>& view);

// Of steps with weights.
Part convolve(const Program& program, const Lowered& lowered, const Step& step);
// `scratch` is made as large as what a thread needs.
Part chained(const Lowered& lowered, const Step& step, int64_t& scratch);
// Of all steps of time, or one for each.
std::vector<Phase> recurrent(
    const Program& program, const Lowered& lowered, const Step& step, int64_t& scratch);
std::vector<Part> convolveTransposed(const Program& program, const Lowered& lowered, const Step& step);

} // namespace jit_passes::x86
