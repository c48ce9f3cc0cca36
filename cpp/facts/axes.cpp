#include "axes.h"

#include "einsum.h"
#include "graph/operators.h"
#include "shape_facts.h"

namespace jit_passes {
namespace {

using As = ResultAxes::As;
using Found = std::optional<ResultAxes>;

const auto pad_kind = symbol("aten::pad");
const auto squeeze_kind = symbol("aten::squeeze");
const auto log_softmax_kind = symbol("aten::log_softmax");

Found number(std::optional<int64_t> axes) {
  return axes ? Found(ResultAxes{As::Number, {}, *axes, {}}) : std::nullopt;
}

Found asMany(const Value* tensor, int64_t more = 0) { return ResultAxes{As::Most, {tensor}, more, {}}; }

Found asMost(at::ArrayRef<const Value*> tensors) {
  return ResultAxes{As::Most, {tensors.begin(), tensors.end()}, 0, {}};
}

// Operators on images: with a batch axis and without.
AxisRange imagesOf(const Node* node) {
  const auto weighted = weightedOperator(node);
  const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node);
  return spatial > 0 ? AxisRange{spatial + 1, spatial + 2} : AxisRange();
}

// A weight of unknown rank is a matrix.
Found ofLinear(const Node* node, const AxisFacts& facts) {
  const bool vector = facts.axes(inputOf(node, "weight")).exact() == 1;
  return asMany(inputOf(node, "input"), vector ? -1 : 0);
}

// A vector gives a result with fewer axes.
Found ofProduct(const Node* node, const AxisFacts& facts) {
  const Value *a = node->input(0), *b = node->input(1);
  const bool matrices = std::min(facts.axes(a).least, facts.axes(b).least) >= 2;
  return matrices ? asMost({a, b}) : std::nullopt;
}

// Tensors without numbers, [0], go with tensors of any rank.
Found ofConcatenation(const Node* node, const AxisFacts& facts) {
  const Node* list = mainOperand(node)->node();
  ResultAxes found{As::Each, {}, 0, {}};
  for (const Value* element :
       list->kind() == prim::ListConstruct ? list->inputs() : at::ArrayRef<const Value*>()) {
    if (facts.axes(element).least > 1) {
      found.of.push_back(element);
    }
  }
  return found.of.empty() ? std::nullopt : Found(found);
}

// A number, [], becomes a tensor of one axis.
Found ofFlatten(const Node* node, const AxisFacts& facts) {
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

Found ofUnflatten(const Node* node, const AxisFacts& facts) {
  const auto parts = facts.length(inputOf(node, "sizes"));
  return parts ? asMany(inputOf(node, "self"), *parts - 1) : std::nullopt;
}

// Of chunk, split and unbind.
Found ofPart(const Node* unpacked) {
  const Node* list = unpacked->input()->node();
  const bool cuts = list->kind() != prim::ListConstruct && movesData(list) && isTensor(mainOperand(list));
  return cuts ? asMany(mainOperand(list), list->kind() == aten::unbind ? -1 : 0) : std::nullopt;
}

// So that there is an axis of that number, from the first or from the last. A number alone has the axes 0 and -1, too.
int64_t holding(int64_t axis) { return axis < -1 ? -axis : axis > 0 ? axis + 1 : 0; }

// The fewest axes that hold the axes which these operands number.
AxisRange holding(const Node* node, std::initializer_list<const char*> operands) {
  AxisRange range;
  for (const char* name : operands) {
    const auto axis = wholeNumber(inputOf(node, name));
    range.least = std::max(range.least, holding(axis.value_or(0)));
  }
  return range;
}

// The axes that unpacking all sizes tells, or all but the last ones: `a, b = x.shape[:-1]`.
std::optional<int64_t> axesUnpacked(const Node* size, const Block* block) {
  const auto unpackedInto = [&](const Value* list) -> std::optional<int64_t> {
    for (const Use& use : list->uses()) {
      if (use.user->kind() == prim::ListUnpack && use.user->owningBlock() == block) {
        return use.user->outputs().size();
      }
    }
    return std::nullopt;
  };
  if (const auto all = unpackedInto(size->output())) {
    return all;
  }
  for (const Use& use : size->output()->uses()) {
    const Node* part = use.user;
    if (part->kind() != aten::slice || !isNone(part, "start") || wholeNumber(inputOf(part, "step")) != 1) {
      continue;
    }
    const auto end = wholeNumber(inputOf(part, "end"));
    const auto front = end && *end < 0 ? unpackedInto(part->output()) : std::nullopt;
    if (front) {
      return *front - *end;
    }
  }
  return std::nullopt;
}

AxisRange exactly(std::optional<int64_t> axes) { return axes ? AxisRange{*axes, *axes} : AxisRange(); }

} // namespace

std::optional<ResultAxes> axesOfResult(const Value* result, const AxisFacts& facts) {
  const Node* node = result->node();
  const auto kind = node->kind();
  if (const AxisRange images = imagesOf(node); images.least > 0) {
    return ResultAxes{As::Most, {mainOperand(node)}, 0, images};
  }
  if (weightedOperator(node)) {
    return ofLinear(node, facts);
  }
  if (keepsShape(node) || kind == aten::transpose || kind == aten::slice || kind == aten::glu ||
      kind == pad_kind) {
    return asMany(mainOperand(node));
  }
  if (isAttention(node)) {
    return asMost(node->inputs().slice(0, 3));
  }
  if (kind == aten::permute) {
    const auto order = constantInts(node, "dims");
    return order ? number(order->size()) : asMany(inputOf(node, "self"));
  }
  if (kind == aten::embedding) {
    return asMany(inputOf(node, "indices"), 1);
  }
  if (takesShape(node)) {
    return asMany(inputOf(node, "other"));
  }
  if (const auto fewer = reducedAxes(node)) {
    return asMany(mainOperand(node), -*fewer);
  }
  if (isCount(node)) {
    return number(1);
  }
  if (kind == prim::NumToTensor) {
    return number(0);
  }
  if (const Value* sizes = sizesMade(node)) {
    return number(facts.length(sizes));
  }
  if (isRecurrentLayer(node)) {
    return number(3); // the states, too
  }
  if (const auto labels = einsumLabels(node)) {
    return number(labels->result.size());
  }
  if (kind == aten::reshape || kind == aten::expand) {
    return number(facts.length(inputOf(node, kind == aten::reshape ? "shape" : "size")));
  }
  if (kind == aten::unsqueeze) {
    return asMany(inputOf(node, "self"), 1);
  }
  if (kind == squeeze_kind) {
    return facts.squeezes(node) ? asMany(inputOf(node, "self"), -1) : std::nullopt;
  }
  if (kind == aten::select) {
    return asMany(inputOf(node, "self"), -1);
  }
  if (kind == aten::matmul) {
    return ofProduct(node, facts);
  }
  if (broadcasts(node)) {
    return asMost(node->inputs().slice(0, 2));
  }
  if (kind == aten::cat) {
    return ofConcatenation(node, facts);
  }
  if (kind == prim::ListUnpack) {
    return ofPart(node);
  }
  if (kind == aten::flatten) {
    return ofFlatten(node, facts);
  }
  return kind == aten::unflatten ? ofUnflatten(node, facts) : std::nullopt;
}

AxisRange rangeOf(const ResultAxes& row, const AxisFacts& facts) {
  if (row.as == As::Number) {
    return {row.more, row.more};
  }
  AxisRange range = row.images, widest{0, 0};
  const auto narrow = [&](const AxisRange& own) {
    range = {std::max(range.least, own.least + row.more), std::min(range.most, own.most + row.more)};
  };
  for (const Value* operand : row.of) {
    const AxisRange own = facts.axes(operand);
    widest = {std::max(widest.least, own.least), std::max(widest.most, own.most)};
    if (row.as == As::Each) {
      narrow(own);
    }
  }
  if (row.as == As::Most) {
    narrow(widest);
  }
  return range;
}

AxisRange axesOfOperand(const Use& use) {
  const Node* node = use.user;
  const auto kind = node->kind();
  const bool listed = kind == prim::ListConstruct && node->output()->uses().size() == 1;
  if (const auto labels = listed ? einsumLabels(node->output()->uses()[0].user) : std::nullopt) {
    const bool here = node->output()->uses()[0].user->owningBlock() == node->owningBlock();
    return here ? exactly((use.offset == 0 ? labels->a : labels->b).size()) : AxisRange();
  }
  if (use.offset != 0) {
    return {};
  }
  if (const AxisRange images = imagesOf(node); images.least > 0) {
    return images;
  }
  if (const auto weighted = weightedOperator(node)) {
    return {.least = 1};
  }
  if (kind == aten::size) {
    return node->inputs().size() == 2
               ? holding(node, {"dim"})
               : exactly(axesUnpacked(node, use.user->input(0)->node()->owningBlock()));
  }
  if (kind == aten::permute) {
    const auto order = constantInts(node, "dims");
    return exactly(order ? std::optional<int64_t>(order->size()) : std::nullopt);
  }
  if (kind == aten::transpose) {
    return holding(node, {"dim0", "dim1"});
  }
  if (kind == aten::flatten) {
    return holding(node, {"start_dim", "end_dim"});
  }
  if (kind == aten::select || kind == aten::slice || kind == aten::unflatten || kind == aten::glu ||
      kind == aten::softmax || kind == log_softmax_kind) {
    return isTensor(node->input(0)) ? holding(node, {"dim"}) : AxisRange();
  }
  if (kind == aten::layer_norm) {
    const auto normalized = constantInts(node, "normalized_shape");
    return {.least = normalized ? static_cast<int64_t>(normalized->size()) : 0};
  }
  AxisRange range;
  if (reducedAxes(node)) {
    for (const int64_t axis : constantInts(node, "dim").value_or(std::vector<int64_t>())) {
      range.least = std::max(range.least, holding(axis));
    }
  }
  return range;
}

} // namespace jit_passes
