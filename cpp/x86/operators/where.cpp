#include "broadcast.h"
#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/general.h"

namespace jit_passes::x86 {
namespace {

Planned where(const RegionReader&, Node* node) {
  refuseUnless(node->inputs().size() == 3, "it gives the positions of a condition");
  return {{Kind("where"), "", {}, 0, {}, {}}, node->inputs().vec()};
}

// y = c is not 0 ? a : b, float32, which broadcast. Items: rows.
Part whereKernel(const StepContext& c) {
  const Dims dims = pixelDims(c.out().sizes, c.out().axis);
  const Placed y = image(c.out(), dims);
  std::array<Placed, 3> operands;
  for (size_t i = 0; i < 3; ++i) {
    operands[i] = broadcastTo(c.out(), c.in(i), dims);
    Image& image = operands[i].image; // strides of 0 broadcast
    image.images = y.image.images, image.depth = y.image.depth, image.height = y.image.height;
  }
  return {y.image.rows(), [=](const Call& call, int64_t begin, int64_t end) {
            const Image out = y.in(call);
            const Image in[] = {operands[0].in(call), operands[1].in(call), operands[2].in(call)};
            for (int64_t index = begin; index < end; ++index) {
              for (int64_t pixel = 0; pixel < out.width; ++pixel) {
                const float* x[3];
                int64_t step[3];
                for (size_t i = 0; i < 3; ++i) {
                  x[i] = reinterpret_cast<const float*>(in[i].rowAt(index) + pixel * in[i].pixel);
                  step[i] = in[i].channels == out.channels;
                }
                auto* to = reinterpret_cast<float*>(out.rowAt(index) + pixel * out.pixel);
                for (int64_t i = 0; i < out.channels; ++i) {
                  const float chosen = x[1][i * step[1]], other = x[2][i * step[2]];
                  to[i] = x[0][i * step[0]] != 0 ? chosen : other;
                }
              }
            }
          }};
}

// Its inputs are the condition, and numbers for where it holds and where not.
const RegisterOperator where_operator{
    {.name = "where",
     .inputs = {3, 3},
     .types = Types::Real,
     .any_dtype = 0,
     .from = {{"where", where, 0}},
     .infer = sizesOfAll,
     .least_axes = mostAxesOfAny,
     .lower = lowerBroadcast,
     .kernel = whereKernel,
     .order = orderOfLargest}};

} // namespace
} // namespace jit_passes::x86
