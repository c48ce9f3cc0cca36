// Parts over float32.
#include "decode.h"
#include "x86/kernels/copy_across.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kFloat = sizeof(float);

// The strides of float32 in the arena, in elements.
Strides elementStrides(const Placed& floats, int64_t channel) {
  const Image& image = floats.image;
  return {image.image / kFloat, image.plane / kFloat, image.row / kFloat, image.pixel / kFloat, channel};
}

int64_t channelStride(const Memory& memory) {
  return memory.axis < 0 ? 1 : memory.strides[memory.axis] / kFloat;
}

// The image of a tensor outside of the arena. Strides count elements.
Image imageAt(const void* data, const Image& sizes, const Strides& strides) {
  Image image = sizes;
  image.data = static_cast<uint8_t*>(const_cast<void*>(data));
  image.image = strides.image * kFloat, image.plane = strides.depth * kFloat;
  image.row = strides.height * kFloat, image.pixel = strides.width * kFloat;
  return image;
}

} // namespace

Strides floatStrides(const Dims& dims, at::IntArrayRef strides, int64_t channel) {
  const auto stride = [&](const Dim& dim) { return dim.axis < 0 ? 0 : strides[dim.axis] * dim.factor; };
  // With one column the stride of columns has no meaning; it is set to the number of channels.
  return {
      stride(dims[0]), stride(dims[1]), stride(dims[2]), dims[3].axis < 0 ? channel : stride(dims[3]),
      channel};
}

Decode Decode::of(const Grid& grid) {
  return grid.is_float
             ? Decode{}
             : Decode{Dequantize{static_cast<float>(grid.scale), static_cast<int32_t>(grid.zero_point)}};
}

void Decode::decode(const Image& codes, float* floats) const {
  of_codes->run(codes, floats, {0, 0, 0, codes.channels, 1}, 0, 1);
}

Part taken(size_t source, const Memory& to) {
  const Dims dims = pixelDims(to.sizes, to.axis);
  const Placed y = image(to, dims);
  return {
      y.image.rows(), [=, axis = to.axis, form = bestForm()](const Call& call, int64_t begin, int64_t end) {
        const auto& [x, strides] = call.sources[source];
        const Strides own = floatStrides(dims, strides, axis < 0 ? 1 : strides[axis]);
        const CopyAcross kernel{own.channel * kFloat, kFloat, kFloat, form};
        kernel.run(imageAt(x, y.image, own), y.in(call), begin, end);
      }};
}

Part given(const Memory& from, const Sizes& strides, size_t number) {
  const int64_t channel = from.axis < 0 ? 1 : strides[from.axis];
  const Dims dims = alongNeighbours(pixelDims(from.sizes, from.axis), strides, channel, 1);
  const Placed x = image(from, dims);
  const Strides to = floatStrides(dims, strides, channel);
  return {x.image.rows(), [=, form = bestForm()](const Call& call, int64_t begin, int64_t end) {
            const CopyAcross kernel{kFloat, to.channel * kFloat, kFloat, form};
            kernel.run(x.in(call), imageAt(call.result(number), x.image, to), begin, end);
          }};
}

Part quantized(const Memory& from, const Memory& to, std::optional<DynamicGrid> grid) {
  const int64_t channel = to.axis < 0 ? kFloat : from.strides[to.axis];
  const Dims pixels =
      pixelDims(to.sizes, to.axis); // the flags of numbers that are not finite are for these lines
  const Dims dims = grid ? pixels : alongNeighbours(pixels, from.strides, channel, kFloat);
  const Placed x{imageOf(dims, from.strides, to.channels(), kFloat), from.offset, from.home},
      y = image(to, dims);
  const Strides strides = elementStrides(x, channel / kFloat);
  const Quantize fixed = quantizeTo(grid ? Grid{1, 0, 0, 255} : *to.grid);
  return {fixed.items(y.image), [=](const Call& call, int64_t begin, int64_t end) {
            const auto* floats = reinterpret_cast<const float*>(x.in(call).data);
            const Quantize kernel =
                grid ? quantizeTo(grid->in(call), kPyTorchRoundsSteps, fixed.form) : fixed;
            kernel.run(floats, strides, y.in(call), begin, end);
            if (grid && !extentOf(grid->extents(call)).finite) {
              findInfinite(floats, strides, y.image, grid->infinite(call), begin, end);
            }
          }};
}

Part dequantized(const Memory& from, const Memory& to) {
  const Dims dims =
      alongNeighbours(pixelDims(from.sizes, from.axis), to.strides, channelStride(to) * kFloat, kFloat);
  const Placed x = image(from, dims), y = image(to, dims);
  const Strides strides = elementStrides(y, channelStride(to));
  const Dequantize kernel{static_cast<float>(from.grid->scale), static_cast<int32_t>(from.grid->zero_point)};
  return {kernel.items(x.image), [=](const Call& call, int64_t begin, int64_t end) {
            kernel.run(x.in(call), reinterpret_cast<float*>(y.in(call).data), strides, begin, end);
          }};
}

} // namespace jit_passes::x86
