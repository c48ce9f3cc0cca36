// Pixel shuffle, which turns channels into pixels, and its inverse.
#include "x86/building/from_graph.h"
#include "x86/lowering/general.h"
#include "x86/program/checks.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {
namespace {

// Axes after the channels.
constexpr int64_t kImageAxes = 2;

Planned pixelShuffle(const RegionReader& reader, Node* node) {
  return {{Kind("pixel_shuffle"), "", {}, 0, {reader.integer(node, "upscale_factor")}, {}}, {node->input(0)}};
}

Planned pixelUnshuffle(const RegionReader& reader, Node* node) {
  return {
      {Kind("pixel_unshuffle"), "", {}, 0, {reader.integer(node, "downscale_factor")}, {}}, {node->input(0)}};
}

void checkFactor(const Operator& op) {
  refuseUnless(between(op.attributes[0], 1, kMostWindow), "a factor of ", op.attributes[0]);
}

int64_t channelsOfImage(const Operator& /*op*/, int64_t rank) { return rank - 1 - kImageAxes; }

template <bool kBack>
Sizes sizesOfShuffled(const Operands& operands) {
  const int64_t factor = operands.op.attributes[0], rank = operands.first().size();
  const int64_t axis = channelsOfImage(operands.op, rank);
  Sizes sizes = operands.first();
  bool fits = axis >= 0;
  for (int64_t i = std::max<int64_t>(axis, 0); i < rank; ++i) {
    const int64_t by = i == axis ? factor * factor : factor;
    const bool divides = (i == axis) != kBack;
    fits = fits && (!divides || sizes[i] % by == 0);
    sizes[i] = divides ? sizes[i] / by : sizes[i] * by;
  }
  require(operands.op, fits, "has a factor of ", factor, ", and got the shape ", operands.first());
  return sizes;
}

// Goes over rows of the large image. Channel c of its pixel w * r + j in row h * r + i is channel c * r * r + i * r
// + j of pixel w in row h of the small image. `copy(small, large)` copies one of these elements in one direction.
template <typename Element, typename Copy>
void overPixels(
    const Image& small, const Image& large, int64_t factor, int64_t begin, int64_t end, const Copy& copy) {
  const int64_t channels = large.channels / int64_t(sizeof(Element));
  for (int64_t index = begin; index < end; ++index) {
    const int64_t y = index % large.height, outer = index / large.height;
    uint8_t* row = small.rowAt(outer * small.height + y / factor);
    for (int64_t x = 0; x < large.width; ++x) {
      auto* few = reinterpret_cast<Element*>(large.rowAt(index) + x * large.pixel);
      auto* many =
          reinterpret_cast<Element*>(row + x / factor * small.pixel) + y % factor * factor + x % factor;
      for (int64_t c = 0; c < channels; ++c) {
        copy(many[c * factor * factor], few[c]);
      }
    }
  }
}

template <bool kBack, typename Element>
Part shuffled(Placed small, Placed large, int64_t factor) {
  small.image.channels *= sizeof(Element), large.image.channels *= sizeof(Element);
  return {large.image.rows(), [=](const Call& call, int64_t begin, int64_t end) {
            overPixels<Element>(
                small.in(call), large.in(call), factor, begin, end, [](Element& of_small, Element& of_large) {
                  (kBack ? of_small : of_large) = kBack ? of_large : of_small;
                });
          }};
}

// Dims with the image's own rows and columns. The axes in front of the channels count images.
template <bool kBack>
Part shuffleKernel(const StepContext& c) {
  const Memory &small = kBack ? c.out() : c.in(), &large = kBack ? c.in() : c.out();
  const auto placed = [](const Memory& memory) { return image(memory, axisDims(memory.sizes, memory.axis)); };
  const auto make = small.bytes() == 1 ? shuffled<kBack, uint8_t> : shuffled<kBack, float>;
  return make(placed(small), placed(large), c.op.attributes[0]);
}

// Attributes: the factor.
template <bool kBack>
Declaration shuffling(const char* name, std::vector<From> from) {
  return {
      .name = name,
      .attributes = {1, 1},
      .types = Types::Same,
      .moves = true,
      .from = std::move(from),
      .check = checkFactor,
      .infer = sizesOfShuffled<kBack>,
      .channels = channelsOfImage,
      .lower = lowerChannels,
      .kernel = shuffleKernel<kBack>};
}

const RegisterOperator shuffle_pixels{shuffling<false>("pixel_shuffle", {{"pixel_shuffle", pixelShuffle}})};
const RegisterOperator unshuffle_pixels{
    shuffling<true>("pixel_unshuffle", {{"pixel_unshuffle", pixelUnshuffle}})};

} // namespace
} // namespace jit_passes::x86
