// Phases of steps with weights.
#include "phases.h"

namespace jit_passes::x86 {
namespace {

// Rows of a matrix with the same distance between all of them.
bool isUniform(const Memory& memory) {
  int64_t stride = -1;
  for (int64_t axis = int64_t(memory.sizes.size()) - 2; axis >= 0; --axis) {
    if (stride >= 0 && memory.sizes[axis] != 1 && memory.strides[axis] != stride) {
      return false;
    }
    stride = (stride < 0 ? memory.strides[axis] : stride) * memory.sizes[axis];
  }
  return true;
}

Placed matrix(const Memory& memory) {
  Image image;
  image.channels = memory.channels();
  image.width = memory.sizes.empty() ? 1 : countOf(memory.sizes) / std::max<int64_t>(image.channels, 1);
  image.pixel = memory.sizes.size() < 2 ? image.channels : memory.strides[memory.sizes.size() - 2];
  return {image, memory.offset};
}

Part convolution(const Step& step, std::shared_ptr<const Packed> packed, const Placed& x, const Placed& y) {
  Requantize requantize;
  requantize.multiplier = packed->multiplier.data();
  requantize.offset = packed->offset.data();
  requantize.low = step.grid->low, requantize.high = step.grid->high;
  requantize.table = step.table;
  const int64_t items = packed->kernel.items(x.image, y.image);
  return {items, [=](const Call& call, int64_t begin, int64_t end) {
            packed->kernel.run(x.in(call), y.in(call), requantize, begin, end);
          }};
}

} // namespace

Part convolve(const Program& program, const Lowered& lowered, const Step& step) {
  const Memory &from = lowered.memory[step.inputs[0]], &to = lowered.memory[step.output];
  const bool linear = program.operators[step.index].kind == Kind::Linear;
  const bool rows = isUniform(from) && isUniform(to);
  const auto view = [&](const Memory& memory) {
    return !linear ? placed(memory)
           : rows  ? matrix(memory)
                   : placed(memory, axisDims(memory.sizes, memory.axis));
  };
  return convolution(step, step.packed, view(from), view(to));
}

// Each tap of the window makes pixels of its own.
std::vector<Part> upsample(
    const Program& program, const Lowered& lowered, const Step& step, Weights& weights) {
  const Memory &from = lowered.memory[step.inputs[0]], &to = lowered.memory[step.output];
  const auto kernel = program.operators[step.index].tensors[kWeight].sizes().slice(2);
  const Placed x = placed(from), whole = placed(to);
  const Image& all = whole.image;
  Placed y = whole;
  y.image.depth = x.image.depth, y.image.height = x.image.height, y.image.width = x.image.width;
  y.image.plane = all.plane * kernel[0], y.image.row = all.row * kernel[1];
  y.image.pixel = all.pixel * kernel[2];
  std::vector<Part> parts;
  for (int64_t tap = 0; tap < kernel[0] * kernel[1] * kernel[2]; ++tap) {
    const int64_t column = tap % kernel[2], row = tap / kernel[2] % kernel[1];
    y.offset = whole.offset + tap / kernel[2] / kernel[1] * all.plane + row * all.row + column * all.pixel;
    parts.push_back(convolution(step, weights.packed(step.index, from.is != Memory::Is::Slice, tap), x, y));
  }
  return parts;
}

} // namespace jit_passes::x86
