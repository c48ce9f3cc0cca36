// Joins convolutions with large values in between to chains.
#include "fuse.h"

#include "geometry.h"

namespace jit_passes::x86 {
namespace {

// The steps that write and read each memory directly, not through another name.
struct Uses {
  explicit Uses(const Lowered& lowered) : writers(lowered.memory.size()), readers(lowered.memory.size()) {
    for (const Step& step : lowered.steps) {
      for (const size_t id : step.inputs) {
        ++readers[id];
      }
      if (step.does != Does::Exit) {
        ++writers[step.output];
      }
    }
    for (const Memory& memory : lowered.memory) {
      readers[memory.parent] += memory.is != Memory::Is::Own;
    }
  }

  // Whether only one step writes the memory and only one reads it.
  bool isBetweenTwo(const Lowered& lowered, size_t id) const {
    return lowered.memory[id].is == Memory::Is::Own && readers[id] == 1 && writers[id] == 1;
  }

  std::vector<size_t> writers, readers;
};

// A smaller value stays in the second cache of a core from one step to the next. Larger weights would be read again
// for each band of rows.
constexpr int64_t kLargeValue = 1 << 20, kSmallWeights = 1 << 18;
// Limits of a layer for a chain: a few rows of its result need a few rows of its operand, and both fit into the
// cache.
constexpr int64_t kFewestRows = 8, kWidestRow = 1 << 16, kMostRead = 16, kMostStride = 2, kMostLayers = 8;

// Whether the step is a convolution that can compute some rows of an image at a time.
bool isLayer(const Lowered& lowered, const Step& step) {
  const Memory& to = lowered.memory[step.output];
  if (step.does != Does::Convolve || to.axis < 0 || to.axis > 1 ||
      step.packed->kernel().bytes() > kSmallWeights) {
    return false;
  }
  const Dims dims = imageDims(to.sizes, to.axis);
  const Window& w = step.packed->kernel().window();
  return dims[1].size == 1 && dims[2].size >= kFewestRows && w.kernel_d == 1 && w.stride_h <= kMostStride &&
         w.kernel_h <= kMostRead && w.dilation_h <= kMostRead && (w.kernel_h - 1) * w.dilation_h < kMostRead;
}

// Whether the value is so large that it should not be written to memory.
bool isLarge(const Memory& value) {
  const Border& border = value.border;
  const int64_t channels = value.channels(), width = imageDims(value.sizes, value.axis)[3].size;
  return countOf(value.sizes) >= kLargeValue && border.left <= kWidestRow && border.right <= kWidestRow &&
         (border.left + width + border.right) * channels <= kWidestRow;
}

// Whether the step can continue the chain of the step before.
bool follows(const Lowered& lowered, const Uses& uses, const Step& before, const Step& step) {
  const bool starts =
      before.does == Does::Chain ? before.chain.size() < kMostLayers : isLayer(lowered, before);
  return starts && isLayer(lowered, step) && step.inputs[0] == before.output &&
         uses.isBetweenTwo(lowered, before.output) && isLarge(lowered.memory[before.output]);
}

} // namespace

void fuseChains(Lowered& lowered) {
  const Uses uses(lowered);
  std::vector<Step> steps;
  for (Step& step : lowered.steps) {
    if (steps.empty() || !follows(lowered, uses, steps.back(), step)) {
      steps.push_back(std::move(step));
      continue;
    }
    Step& chain = steps.back();
    if (chain.does != Does::Chain) {
      Step first = chain;
      chain.does = Does::Chain, chain.chain = {std::move(first)};
    }
    chain.index = step.index, chain.output = step.output;
    chain.inputs.insert(chain.inputs.end(), step.inputs.begin() + 1, step.inputs.end());
    chain.chain.push_back(std::move(step));
  }
  lowered.steps = std::move(steps);
}

} // namespace jit_passes::x86
