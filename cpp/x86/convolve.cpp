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

Layer layerOf(const Step& step, std::shared_ptr<const Packed> packed) {
  Layer layer{std::move(packed), {}, {}};
  layer.requantize.multiplier = layer.packed->multiplier.data();
  layer.requantize.offset = layer.packed->offset.data();
  layer.requantize.low = step.grid->low, layer.requantize.high = step.grid->high;
  layer.requantize.table = step.table;
  layer.requantize.residual_multiplier = layer.packed->residual_multiplier;
  return layer;
}

} // namespace

int64_t Layer::items(const Image& x, const Image& y) const {
  return packed->kernel->items(x, y, residual ? &residual->image : nullptr);
}

void Layer::run(const Image& x, const Image& y, const Image& other, int64_t begin, int64_t end) const {
  Requantize how = requantize;
  how.residual = residual ? &other : nullptr;
  packed->kernel->run(x, y, how, begin, end);
}

Layer layerOf(const Lowered& lowered, const Step& step, const std::function<Placed(const Memory&)>& view) {
  Layer layer = layerOf(step, step.packed);
  if (step.inputs.size() > 1) {
    layer.residual = view(lowered.memory[step.inputs[1]]);
  }
  return layer;
}

Placed rowsOf(const Memory& memory) { return isUniform(memory) ? matrix(memory) : spread(memory); }

Part convolve(const Program& program, const Lowered& lowered, const Step& step) {
  const Memory &from = lowered.memory[step.inputs[0]], &to = lowered.memory[step.output];
  const bool linear = program.operators[step.index].kind == Kind::Linear;
  const bool rows = isUniform(to) && std::ranges::all_of(step.inputs, [&](size_t id) {
                      return isUniform(lowered.memory[id]);
                    });
  const auto view = [&](const Memory& memory) {
    return !linear ? image(memory) : rows ? matrix(memory) : spread(memory);
  };
  return convolution(layerOf(lowered, step, view), view(from), view(to));
}

// Each tap of the window makes pixels of its own.
std::vector<Part> upsample(
    const Program& program, const Lowered& lowered, const Step& step, Weights& weights) {
  const Memory &from = lowered.memory[step.inputs[0]], &to = lowered.memory[step.output];
  const Operator& op = program.operators[step.index];
  const auto kernel = op.tensors[kWeight].sizes().slice(2);
  const Placed x = image(from), whole = image(to);
  const Image& all = whole.image;
  Placed y = whole;
  y.image.depth = x.image.depth, y.image.height = x.image.height, y.image.width = x.image.width;
  y.image.plane = all.plane * kernel[0], y.image.row = all.row * kernel[1];
  y.image.pixel = all.pixel * kernel[2];
  std::vector<Part> parts;
  for (int64_t tap = 0; tap < kernel[0] * kernel[1] * kernel[2]; ++tap) {
    const int64_t column = tap % kernel[2], row = tap / kernel[2] % kernel[1];
    y.offset = whole.offset + tap / kernel[2] / kernel[1] * all.plane + row * all.row + column * all.pixel;
    parts.push_back(
        convolution(layerOf(step, weights.packed(program, op, from.is != Memory::Is::Slice, tap)), x, y));
  }
  return parts;
}

} // namespace jit_passes::x86
