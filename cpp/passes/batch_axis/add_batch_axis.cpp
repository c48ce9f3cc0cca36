// Give convolutions a batch axis if their input has none, for kernels that take batches only. An input with a batch
// axis passes as it is, so one graph is right for both.
//
//   %y = aten::conv2d(%x, ...)                         %w = aten::unsqueeze(%x, 0)
//   %r = aten::relu(%y)                                %b = aten::flatten(%w, 0, -4)
//   jit_passes::observe_histogram(%r, ...)       ->    %y = aten::conv2d(%b, ...)
//                                                      %r = aten::relu(%y)
//                                                      %s = x.size()[:-3] + r.size()[1:]
//                                                      %z = aten::reshape(%r, %s)
//                                                      jit_passes::observe_histogram(%z, ...)
//
// The option `places` has the ids of the places of these results. A place stands after the convolution, or after the
// clips that follow it.
#include "graph/operators.h"
#include "graph/places.h"
#include "graph/registry.h"
#include "passes/convolution.h"

namespace jit_passes {
namespace {

// size(value)[begin:end]
Value* sizes(Value* value, const c10::IValue& begin, const c10::IValue& end, Node* before) {
  const auto ints = c10::ListType::ofInts();
  Value* all = insertValue(before, aten::size, {value}, before, ints);
  const std::vector<Value*> range{
      all, insertConstant(before, begin), insertConstant(before, end), insertConstant(before, 1)};
  return insertValue(before, aten::slice, range, before, ints);
}

bool addTo(Node* place) {
  Value* result = mainOperand(place);
  Node* convolution = convolutionBehind(result);
  if (convolution == nullptr) {
    return false;
  }
  const int64_t own = weightedOperator(convolution)->spatial_dims + 1; // axes of one sample
  Value* x = inputOf(convolution, "input");
  const auto number = [&](int64_t value) { return insertConstant(convolution, value); };
  Value* one_more = insertValue(convolution, aten::unsqueeze, {x, number(0)}, convolution);
  const std::vector<Value*> joined{one_more, number(0), number(-own - 1)};
  convolution->replaceInput(0, insertValue(convolution, aten::flatten, joined, convolution));
  Node* next = result->node()->next();
  const auto uses = result->uses(); // before the nodes that restore the shape add theirs
  Value* front = sizes(x, {}, -own, next);
  Value* behind = sizes(result, 1, {}, next);
  Value* shape = insertValue(next, aten::add, {front, behind}, next, c10::ListType::ofInts());
  Value* restored = insertValue(next, aten::reshape, {result, shape}, result->node());
  for (const Use& use : uses) {
    use.user->replaceInput(use.offset, restored);
  }
  return true;
}

bool addBatchAxis(PassContext& context) {
  const auto ids = context.option("places"); // an empty list has no type
  bool changed = false;
  for (Node* place : placesOf(*context.graph())) {
    const auto is_own = [&](const c10::IValue& id) { return id.toInt() == placeIdOf(place); };
    changed |= std::ranges::any_of(ids.toListRef(), is_own) && addTo(place);
  }
  return changed;
}

const RegisterPass add_batch_axis_pass{
    "add_batch_axis", "Give convolutions a batch axis where their input has none.", addBatchAxis,
    needs("inlined"), takes({{"places", "list"}})};

} // namespace
} // namespace jit_passes
