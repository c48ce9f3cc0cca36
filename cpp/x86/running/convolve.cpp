// Phases of steps with weights.
#include "phases.h"
#include "x86/lowering/transposed.h"

namespace jit_passes::x86 {
namespace {

// Whether all pixels have one distance in memory, so the value is a matrix.
bool isUniform(const Memory& memory) {
  const int64_t last = int64_t(memory.sizes.size()) - 1;
  if (memory.axis >= 0 && memory.axis != last) {
    return false;
  }
  int64_t stride = -1;
  for (int64_t axis = last - 1; axis >= 0; --axis) {
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
  image.pixel =
      memory.sizes.size() < 2 ? image.channels * memory.bytes() : memory.strides[memory.sizes.size() - 2];
  return {image, memory.offset, memory.home};
}

Placed spread(const Memory& memory) { return image(memory, axisDims(memory.sizes, memory.axis)); }

Part convolution(const Layer& layer, const Placed& x, const Placed& y) {
  const int64_t items = layer.items(x.image, y.image);
  return {items, [=](const Call& call, int64_t begin, int64_t end) {
            const Image other = layer.residual ? layer.residual->in(call) : Image{};
            layer.run(x.in(call), y.in(call), other, begin, end);
          }};
}

Layer layerOf(const Step& step, size_t kernel) {
  Layer layer{step.packed, {}, {}, kernel};
  layer.requantize.multiplier = layer.packed->multiplier.data();
  layer.requantize.offset = layer.packed->offset.data();
  layer.requantize.range = codeRangeOf(*step.grid);
  layer.requantize.table = step.table;
  layer.requantize.residual_multiplier = layer.packed->residual_multiplier;
  return layer;
}

} // namespace

int64_t Layer::items(const Image& x, const Image& y) const {
  return packed->kernel(kernel).items(x, y, residual ? &residual->image : nullptr);
}

void Layer::run(const Image& x, const Image& y, const Image& other, int64_t begin, int64_t end) const {
  Requantize how = requantize;
  how.residual = residual ? &other : nullptr;
  packed->kernel(kernel).run(x, y, how, begin, end);
}

Layer layerOf(const Lowered& lowered, const Step& step, const std::function<Placed(const Memory&)>& view) {
  Layer layer = layerOf(step, 0);
  if (step.inputs.size() > 1) {
    layer.residual = view(lowered.memory[step.inputs[1]]);
  }
  return layer;
}

Placed rowsOf(const Memory& memory) { return isUniform(memory) ? matrix(memory) : spread(memory); }

Part convolve(const Program& program, const Lowered& lowered, const Step& step) {
  const Memory &from = lowered.memory[step.inputs[0]], &to = lowered.memory[step.output];
  const bool linear = isLinear(program.operators[step.index].kind);
  const bool rows = isUniform(to) && std::ranges::all_of(step.inputs, [&](size_t id) {
                      return isUniform(lowered.memory[id]);
                    });
  const auto view = [&](const Memory& memory) {
    return !linear ? image(memory) : rows ? matrix(memory) : spread(memory);
  };
  return convolution(layerOf(lowered, step, view), view(from), view(to));
}

std::vector<Part> convolveTransposed(const Program& program, const Lowered& lowered, const Step& step) {
  const Placed x = image(lowered.memory[step.inputs[0]]), all = image(lowered.memory[step.output]);
  const auto residues = residuesOf(program.operators[step.index]);
  std::vector<Part> parts;
  for (size_t i = 0; i < residues.size(); ++i) {
    const Placed y = resultsOf(residues[i], all);
    if (y.image.rows() * y.image.width > 0) {
      parts.push_back(convolution(layerOf(step, i), x, y));
    }
  }
  return parts;
}

} // namespace jit_passes::x86
