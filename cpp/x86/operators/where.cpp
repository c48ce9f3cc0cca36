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

// y = c != 0 ? a : b in float32, which broadcast. Items: rows.
Part whereKernel(const StepContext& c) {
  const Dims dims = pixelDims(c.out().sizes, c.out().axis);
  const Placed y = image(c.out(), dims);
  const Placed condition = broadcastTo(c.out(), c.in(0), dims);
  const Placed chosen = broadcastTo(c.out(), c.in(1), dims), other = broadcastTo(c.out(), c.in(2), dims);
  const SelectFloats kernel;
  return {kernel.items(y.image), [=](const Call& call, int64_t begin, int64_t end) {
            kernel.run(condition.in(call), chosen.in(call), other.in(call), y.in(call), begin, end);
          }};
}

// Inputs: the condition, and the numbers where it holds and where it does not.
const RegisterOperator where_operator{
    {.name = "where",
     .inputs = {3, 3},
     .types = Types::Real,
     .any_dtype = 0,
     .from = {{"where", where, "condition"}},
     .infer = sizesOfAll,
     .least_axes = mostAxesOfAny,
     .lower = lowerBroadcast,
     .kernel = whereKernel,
     .order = orderOfLargest}};

} // namespace
} // namespace jit_passes::x86
