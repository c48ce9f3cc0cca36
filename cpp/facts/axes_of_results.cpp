#include "axes_of_results.h"

#include "einsum.h"
#include "graph/operators.h"
#include "shape_facts.h"

namespace jit_passes {
namespace {

using As = ResultAxes::As;

Axes number(std::optional<int64_t> axes) {
  return axes ? Axes(ResultAxes{As::Number, {}, *axes, {}}) : std::nullopt;
}

Axes asMany(const Value* tensor, int64_t more = 0) { return ResultAxes{As::Most, {tensor}, more, {}}; }

Axes asMost(at::ArrayRef<const Value*> tensors) {
  return ResultAxes{As::Most, {tensors.begin(), tensors.end()}, 0, {}};
}

} // namespace

AxisRange imagesOf(const Node* node) {
  const auto weighted = weightedOperator(node);
  const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node);
  return spatial > 0 ? AxisRange{spatial + 1, spatial + 2} : AxisRange();
}

Axes axesOfPermuted(const Node* node, const AxisFacts&) {
  const auto dims = constantInts(node, "dims");
  return dims ? number(dims->size()) : asMany(mainOperand(node));
}

Axes axesOfSqueezed(const Node* node, const AxisFacts& facts) {
  return facts.squeezes(node) ? asMany(mainOperand(node), -1) : std::nullopt;
}

Axes axesOfEmbedded(const Node* node, const AxisFacts&) { return asMany(inputOf(node, "indices"), 1); }

// A weight of unknown rank counts as a matrix: layers that train have no other.
Axes axesOfLinear(const Node* node, const AxisFacts& facts) {
  const bool vector = facts.axes(inputOf(node, "weight")).exact() == 1;
  return asMany(inputOf(node, "input"), vector ? -1 : 0);
}

Axes axesOfImages(const Node* node, const AxisFacts&) {
  return ResultAxes{As::Most, {mainOperand(node)}, 0, imagesOf(node)};
}

// Only for matrices: an operand with one axis gives a result with fewer axes.
Axes axesOfProduct(const Node* node, const AxisFacts& facts) {
  const Value *a = node->input(0), *b = node->input(1);
  const bool matrices = std::min(facts.axes(a).least, facts.axes(b).least) >= 2;
  return matrices ? asMost({a, b}) : std::nullopt;
}

Axes axesOfAttention(const Node* node, const AxisFacts&) { return asMost(node->inputs().slice(0, 3)); }

// An empty tensor of shape [0] can be concatenated with tensors of any rank, so operands of rank 1 tell nothing.
Axes axesOfConcatenated(const Node* node, const AxisFacts& facts) {
  const Node* list = mainOperand(node)->node();
  ResultAxes found{As::Each, {}, 0, {}};
  for (const Value* element :
       list->kind() == prim::ListConstruct ? list->inputs() : at::ArrayRef<const Value*>()) {
    if (facts.axes(element).least > 1) {
      found.of.push_back(element);
    }
  }
  return found.of.empty() ? std::nullopt : Axes(found);
}

// Nothing for tensors that may have no axes: flatten gives them one.
Axes axesOfFlattened(const Node* node, const AxisFacts& facts) {
  const Value* tensor = inputOf(node, "self");
  const auto first = wholeNumber(inputOf(node, "start_dim")), last = wholeNumber(inputOf(node, "end_dim"));
  if (!first || !last) {
    return std::nullopt;
  }
  if (*first >= 0 && *last == -1) {
    return number(*first + 1);
  }
  const AxisRange own = facts.axes(tensor);
  if (own.exact() && own.least > 0) {
    const auto fromFront = [&](int64_t axis) { return axis < 0 ? axis + own.least : axis; };
    return asMany(tensor, fromFront(*first) - fromFront(*last));
  }
  return own.least > 0 && (*first < 0) == (*last < 0) ? asMany(tensor, *first - *last) : std::nullopt;
}

Axes axesOfUnflattened(const Node* node, const AxisFacts& facts) {
  const auto parts = facts.length(inputOf(node, "sizes"));
  return parts ? asMany(inputOf(node, "self"), *parts - 1) : std::nullopt;
}

Axes axesOfPart(const Node* unpacked, const AxisFacts&) {
  const Node* list = unpacked->input()->node();
  return cutsTensor(list) ? asMany(mainOperand(list), list->kind() == aten::unbind ? -1 : 0) : std::nullopt;
}

Axes axesOfReduced(const Node* node, const AxisFacts&) {
  return asMany(mainOperand(node), -*reducedAxes(node));
}

Axes axesOfBroadcast(const Node* node, const AxisFacts&) { return asMost(node->inputs().slice(0, 2)); }

Axes axesOfEinsum(const Node* node, const AxisFacts&) { return number(einsumLabels(node)->result.size()); }

Axes axesOfSizes(const Node* node, const AxisFacts& facts) {
  const Value* sizes = sizesTaken(node);
  return sizes ? number(facts.length(sizes)) : std::nullopt;
}

// For expand_as and its like.
Axes axesOfOther(const Node* node, const AxisFacts&) { return asMany(inputOf(node, "other")); }

} // namespace jit_passes
