#include "axes.h"

#include "einsum.h"
#include "given_sizes.h"
#include "graph/operators.h"
#include "shape_facts.h"
#include "sizes_of_results.h"

namespace jit_passes {
namespace {

using As = ResultAxes::As;
using Found = std::optional<ResultAxes>;

const auto pad_kind = symbol("aten::pad");
const auto log_softmax_kind = symbol("aten::log_softmax");
const auto unsafe_view_kind = symbol("aten::_unsafe_view");

Found number(std::optional<int64_t> axes) {
  return axes ? Found(ResultAxes{As::Number, {}, *axes, {}}) : std::nullopt;
}

Found asMany(const Value* tensor, int64_t more = 0) { return ResultAxes{As::Most, {tensor}, more, {}}; }

Found asMost(at::ArrayRef<const Value*> tensors) {
  return ResultAxes{As::Most, {tensors.begin(), tensors.end()}, 0, {}};
}

// The axes of an image, without and with a batch axis, for operators on images.
AxisRange imagesOf(const Node* node) {
  const auto weighted = weightedOperator(node);
  const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node);
  return spatial > 0 ? AxisRange{spatial + 1, spatial + 2} : AxisRange();
}

// A weight that is a vector gives a result with an axis less.
Found ofLinear(const Node* node, const AxisFacts& facts) {
  const auto weight = facts.axes(inputOf(node, "weight")).exact();
  return weight ? asMany(inputOf(node, "input"), *weight == 1 ? -1 : 0) : std::nullopt;
}

// Only for matrices: an operand with one axis gives a result with fewer axes.
Found ofProduct(const Node* node, const AxisFacts& facts) {
  const Value *a = node->input(0), *b = node->input(1);
  const bool matrices = std::min(facts.axes(a).least, facts.axes(b).least) >= 2;
  return matrices ? asMost({a, b}) : std::nullopt;
}

// An empty tensor of shape [0] can be concatenated with tensors of any rank, so operands of rank 1 tell nothing.
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

// Nothing for tensors that may have no axes: flatten gives them one.
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

// The parts that chunk, split and unbind give.
Found ofPart(const Node* unpacked, const AxisFacts&) {
  const Node* list = unpacked->input()->node();
  const bool cuts = list->kind() != prim::ListConstruct && movesData(list) && isTensor(mainOperand(list));
  return cuts ? asMany(mainOperand(list), list->kind() == aten::unbind ? -1 : 0) : std::nullopt;
}

// The fewest axes of a tensor that has an axis of this number, which counts from the end if it is negative. A tensor
// without axes accepts 0 and -1 too.
int64_t holding(int64_t axis) { return axis < -1 ? -axis : axis > 0 ? axis + 1 : 0; }

// The fewest axes of a tensor that has all axes which these operands number.
AxisRange holding(const Node* node, std::initializer_list<const char*> operands) {
  AxisRange range;
  for (const char* name : operands) {
    const auto axis = wholeNumber(inputOf(node, name));
    range.least = std::max(range.least, holding(axis.value_or(0)));
  }
  return range;
}

AxisRange holdsDim(const Node* node) { return holding(node, {"dim"}); }

AxisRange exactly(std::optional<int64_t> axes) { return axes ? AxisRange{*axes, *axes} : AxisRange(); }

// The axes of a tensor whose sizes are unpacked, all of them or all but the last ones: `a, b = x.shape[:-1]`.
AxisRange unpacked(const Node* size) {
  const Block* block = size->input(0)->node()->owningBlock();
  const auto unpackedInto = [&](const Value* list) -> std::optional<int64_t> {
    for (const Use& use : list->uses()) {
      if (use.user->kind() == prim::ListUnpack && use.user->owningBlock() == block) {
        return use.user->outputs().size();
      }
    }
    return std::nullopt;
  };
  if (const auto all = unpackedInto(size->output())) {
    return exactly(all);
  }
  for (const Use& use : size->output()->uses()) {
    const Node* part = use.user;
    if (part->kind() != aten::slice || !isNone(part, "start") || wholeNumber(inputOf(part, "step")) != 1) {
      continue;
    }
    const auto end = wholeNumber(inputOf(part, "end"));
    const auto front = end && *end < 0 ? unpackedInto(part->output()) : std::nullopt;
    if (front) {
      return exactly(*front - *end);
    }
  }
  return {};
}

AxisRange holdsReduced(const Node* node) {
  AxisRange range;
  for (const int64_t axis : constantInts(node, "dim").value_or(std::vector<int64_t>())) {
    range.least = std::max(range.least, holding(axis));
  }
  return range;
}

std::optional<int64_t> countOf(const Node* node, const char* operand) {
  const auto numbers = constantInts(node, operand);
  return numbers ? std::optional<int64_t>(numbers->size()) : std::nullopt;
}

template <int64_t more>
Found ofOperand(const Node* node, const AxisFacts&) {
  return asMany(mainOperand(node), more);
}

template <int64_t axes>
Found always(const Node*, const AxisFacts&) {
  return number(axes);
}

Found ofSizes(const Node* node, const AxisFacts& facts) {
  const Value* sizes = sizesTaken(node);
  return sizes ? number(facts.length(sizes)) : std::nullopt;
}

// The axes and sizes of a result, and the axes that the operator demands of its first operand. Null: not known.
struct Row {
  Found (*axes)(const Node* node, const AxisFacts& facts) = nullptr;
  SizeFunction* size = nullptr;
  AxisRange (*demand)(const Node* node) = nullptr;
};

const std::unordered_map<c10::Symbol, Row>& rowsByKind() {
  static const std::unordered_map<c10::Symbol, Row> rows{
      {aten::transpose,
       {ofOperand<0>, sizeOfTransposed, [](auto* n) { return holding(n, {"dim0", "dim1"}); }}},
      {aten::permute,
       {[](auto* n, auto& f) { return countOf(n, "dims") ? number(countOf(n, "dims")) : ofOperand<0>(n, f); },
        sizeOfPermuted, [](auto* n) { return exactly(countOf(n, "dims")); }}},
      {aten::slice, {ofOperand<0>, sizeOfSlice, holdsDim}},
      {aten::select, {ofOperand<-1>, sizeOfSelected, holdsDim}},
      {aten::unsqueeze, {ofOperand<1>, sizeOfUnsqueezed}},
      {aten::squeeze,
       {[](auto* n, auto& f) { return f.squeezes(n) ? ofOperand<-1>(n, f) : std::nullopt; }, sizeOfSqueezed}},
      {aten::glu, {ofOperand<0>, nullptr, holdsDim}},
      {pad_kind, {ofOperand<0>}},
      {aten::softmax, {ofOperand<0>, sizeOfOperand, holdsDim}},
      {log_softmax_kind, {ofOperand<0>, sizeOfOperand, holdsDim}},
      {aten::layer_norm,
       {ofOperand<0>, sizeOfOperand,
        [](auto* n) { return AxisRange{.least = countOf(n, "normalized_shape").value_or(0)}; }}},
      {aten::size,
       {nullptr, nullptr, [](auto* n) { return n->inputs().size() == 2 ? holdsDim(n) : unpacked(n); }}},
      {aten::embedding, {[](auto* n, auto&) { return asMany(inputOf(n, "indices"), 1); }, sizeOfEmbedded}},
      {prim::NumToTensor, {always<0>}},
      {aten::reshape, {ofSizes, sizeOfReshaped}},
      {aten::view, {ofSizes, sizeOfReshaped}},
      {unsafe_view_kind, {ofSizes, sizeOfReshaped}},
      {aten::expand, {ofSizes, sizeOfReshaped}},
      {aten::matmul, {ofProduct, sizeOfProduct}},
      {aten::mm, {always<2>, sizeOfProduct, [](auto*) { return exactly(2); }}},
      {aten::bmm, {always<3>, sizeOfProduct, [](auto*) { return exactly(3); }}},
      {aten::cat, {ofConcatenation, sizeOfConcatenated}},
      {prim::ListUnpack, {ofPart, sizeOfPart}},
      {aten::flatten,
       {ofFlatten, sizeOfReshaped, [](auto* n) { return holding(n, {"start_dim", "end_dim"}); }}},
      {aten::unflatten, {ofUnflatten, sizeOfReshaped, holdsDim}},
  };
  return rows;
}

// Rows for families of operators, found by a test. The first test that holds decides.
const std::pair<bool (*)(const Node*), Row> kFamilies[] = {
    {[](auto* n) { return imagesOf(n).least > 0; },
     {[](auto* n, auto&) { return Found(ResultAxes{As::Most, {mainOperand(n)}, 0, imagesOf(n)}); },
      sizeOfLayer, imagesOf}},
    {[](auto* n) { return weightedOperator(n).has_value(); },
     {ofLinear, sizeOfLayer, [](auto*) { return AxisRange{.least = 1}; }}},
    {keepsShape, {ofOperand<0>, sizeOfOperand}},
    {isAttention, {[](auto* n, auto&) { return asMost(n->inputs().slice(0, 3)); }, sizeOfProduct}},
    {takesShape, {[](auto* n, auto&) { return asMany(inputOf(n, "other")); }, sizeOfOther}},
    {[](auto* n) { return reducedAxes(n).has_value(); },
     {[](auto* n, auto&) { return asMany(mainOperand(n), -*reducedAxes(n)); }, nullptr, holdsReduced}},
    {isCount, {always<1>, sizeOfCount}},
    {[](auto* n) { return sizesMade(n) != nullptr; }, {ofSizes, sizeOfMade}},
    {isRecurrentLayer, {always<3>, sizeOfSteps}}, // results and states
    {[](auto* n) { return einsumLabels(n).has_value(); },
     {[](auto* n, auto&) { return number(einsumLabels(n)->result.size()); }, sizeOfEinsum}},
    {broadcasts, {[](auto* n, auto&) { return asMost(n->inputs().slice(0, 2)); }, sizeOfBroadcast}},
};

const Row* rowOf(const Node* node) {
  if (const auto known = rowsByKind().find(node->kind()); known != rowsByKind().end()) {
    return &known->second;
  }
  const auto* found = std::ranges::find_if(kFamilies, [&](const auto& family) { return family.first(node); });
  return found == std::end(kFamilies) ? nullptr : &found->second;
}

} // namespace

std::optional<ResultAxes> axesOfResult(const Value* result, const AxisFacts& facts) {
  const Row* row = rowOf(result->node());
  return row && row->axes ? row->axes(result->node(), facts) : std::nullopt;
}

std::optional<Extent> sizeOfResult(const Value* result, int64_t axis, const SizeFacts& facts) {
  const Row* row = rowOf(result->node());
  return row && row->size ? row->size(result, axis, facts) : std::nullopt;
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
  const bool listed = node->kind() == prim::ListConstruct && node->output()->uses().size() == 1;
  if (const auto labels = listed ? einsumLabels(node->output()->uses()[0].user) : std::nullopt) {
    const bool here = node->output()->uses()[0].user->owningBlock() == node->owningBlock();
    return here ? exactly((use.offset == 0 ? labels->a : labels->b).size()) : AxisRange();
  }
  const Row* row = use.offset == 0 ? rowOf(node) : nullptr;
  return row && row->demand ? row->demand(node) : AxisRange();
}

} // namespace jit_passes
