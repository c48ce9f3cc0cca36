#include "tensor_facts.h"

#include "dtypes.h"

namespace jit_passes {
namespace {

TensorFacts shapeOf(const Value* tensor, const Shapes& shapes) {
  TensorFacts facts;
  if (const auto held = shapes.constant(tensor)) {
    facts.axes = {held->dim(), held->dim()};
    facts.sizes.assign(held->sizes().begin(), held->sizes().end());
    facts.dtype = held->scalar_type();
    return facts;
  }
  facts.axes = shapes.axes(tensor);
  for (int64_t axis = -facts.axes.least; axis < 0; ++axis) {
    facts.sizes.push_back(shapes.ofAxis(tensor, axis).number());
  }
  return facts;
}

} // namespace

std::unordered_map<int64_t, TensorFacts> tensorFacts(const PassContext& context, bool attributes_apart) {
  Graph& graph = *context.graph();
  const Shapes shapes(context, Images::Batched, attributes_apart);
  Dtypes dtypes(context);
  for (const Node* node : nodesInOrder(graph)) {
    dtypes.add(node);
  }
  std::unordered_map<int64_t, TensorFacts> found;
  forEachValue(graph.block(), [&](const Value* value) {
    if (!isTensor(value)) {
      return;
    }
    TensorFacts facts = shapeOf(value, shapes);
    if (!facts.dtype) {
      facts.dtype = dtypes.of(value).known;
    }
    if (facts.axes.least > 0 || facts.axes.most < kMostAxes || facts.dtype) {
      found.emplace(value->unique(), std::move(facts));
    }
  });
  return found;
}

} // namespace jit_passes
