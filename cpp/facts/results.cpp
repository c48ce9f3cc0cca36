#include "results.h"

#include "einsum.h"
#include "given_sizes.h"
#include "graph/dialect.h"
#include "graph/operators.h"
#include "shape_facts.h"
#include "sizes_of_results.h"

namespace jit_passes {
namespace {

using As = ResultAxes::As;

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

// The columns: facts of an operator's results, and the axes that the operator demands of its first operand. Null: the
// next row that holds the operator decides, see `column`.
struct Row {
  AxesFunction* axes = nullptr;
  SizeFunction* size = nullptr;
  DtypeFunction* dtype = nullptr;
  AxisRange (*demand)(const Node* node) = nullptr;
};

constexpr DtypeFunction *kFloats = inFloats<dtypeOfOperand>, *kFloatsOfTensors = inFloats<dtypeOfTensors>;

const std::unordered_map<c10::Symbol, Row>& rowsByKind() {
  static const std::unordered_map<c10::Symbol, Row> rows{
      {aten::transpose,
       {axesOfOperand<0>, sizeOfTransposed, dtypeOfOperand,
        [](auto* n) { return holding(n, {"dim0", "dim1"}); }}},
      {aten::permute,
       {axesOfPermuted, sizeOfPermuted, dtypeOfOperand, [](auto* n) { return exactly(countOf(n, "dims")); }}},
      {aten::slice, {axesOfOperand<0>, sizeOfSlice, dtypeOfOperand, holdsDim}},
      {aten::select, {axesOfOperand<-1>, sizeOfSelected, dtypeOfOperand, holdsDim}},
      {aten::unsqueeze, {axesOfOperand<1>, sizeOfUnsqueezed, dtypeOfOperand}},
      {aten::squeeze, {axesOfSqueezed, sizeOfSqueezed, dtypeOfOperand}},
      {aten::glu, {axesOfOperand<0>, nullptr, kFloats, holdsDim}},
      {aten::pad, {axesOfOperand<0>, nullptr, dtypeOfOperand}},
      {aten::size, {.demand = [](auto* n) { return n->inputs().size() == 2 ? holdsDim(n) : unpacked(n); }}},
      {aten::embedding, {axesOfEmbedded, sizeOfEmbedded, inFloats<dtypeOfWeight>}},
      {prim::NumToTensor, {axesAlways<0>}},
      {aten::reshape, {axesOfSizes, sizeOfReshaped, dtypeOfOperand}},
      {aten::view, {axesOfSizes, sizeOfReshaped, dtypeOfOperand}},
      {aten::_unsafe_view, {axesOfSizes, sizeOfReshaped, dtypeOfOperand}},
      {aten::expand, {axesOfSizes, sizeOfReshaped, dtypeOfOperand}},
      {aten::matmul, {axesOfProduct, sizeOfProduct, dtypeOfTensors}},
      {aten::mm, {axesAlways<2>, sizeOfProduct, dtypeOfTensors, [](auto*) { return exactly(2); }}},
      {aten::bmm, {axesAlways<3>, sizeOfProduct, dtypeOfTensors, [](auto*) { return exactly(3); }}},
      {aten::cat, {axesOfConcatenated, sizeOfConcatenated, dtypeOfElements}},
      {aten::stack, {.dtype = dtypeOfElements}},
      {prim::ListUnpack, {axesOfPart, sizeOfPart, dtypeOfPart}},
      {aten::flatten,
       {axesOfFlattened, sizeOfReshaped, dtypeOfOperand,
        [](auto* n) { return holding(n, {"start_dim", "end_dim"}); }}},
      {aten::unflatten, {axesOfUnflattened, sizeOfReshaped, dtypeOfOperand, holdsDim}},
      {aten::softmax, {.dtype = kFloats, .demand = holdsDim}},
      {aten::log_softmax, {.dtype = kFloats, .demand = holdsDim}},
      {aten::layer_norm,
       {.dtype = kFloats,
        .demand = [](auto* n) { return AxisRange{.least = countOf(n, "normalized_shape").value_or(0)}; }}},
      {aten::batch_norm, {.dtype = kFloats}},
      {aten::group_norm, {.dtype = kFloats}},
      {aten::instance_norm, {.dtype = kFloats}},
      {aten::rms_norm, {.dtype = kFloatsOfTensors}},
      {aten::gelu, {.dtype = kFloatsOfTensors}},
      {aten::silu, {.dtype = kFloatsOfTensors}},
      {aten::sigmoid, {.dtype = kFloatsOfTensors}},
      {aten::tanh, {.dtype = kFloatsOfTensors}},
      {aten::sqrt, {.dtype = kFloatsOfTensors}},
      {aten::rsqrt, {.dtype = kFloatsOfTensors}},
      {aten::reciprocal, {.dtype = kFloatsOfTensors}},
      {aten::sum, {.dtype = dtypeOfTensors}},
      {aten::masked_fill, {.dtype = dtypeOfOperand}},
      {aten::type_as, {.dtype = dtypeOfOther}},
      {aten::to, {.dtype = dtypeOfCast}},
      {aten::embedding_bag, {.dtype = kFloats}}, // its first operand is the table
      {dequantize, {.dtype = dtypeIs<at::kFloat>}},
      {dequantize_per_channel, {.dtype = dtypeIs<at::kFloat>}},
      {dequantize_dynamic, {.dtype = floatingDtype}},
  };
  return rows;
}

// Rows for families of operators, found by a test.
const std::pair<bool (*)(const Node*), Row> kFamilies[] = {
    {[](auto* n) { return imagesOf(n).least > 0; }, {axesOfImages, sizeOfLayer, nullptr, imagesOf}},
    {[](auto* n) { return weightedOperator(n).has_value(); },
     {axesOfLinear, sizeOfLayer, inFloats<dtypeOfWeight>, [](auto*) { return AxisRange{.least = 1}; }}},
    {keepsShape, {axesOfOperand<0>, sizeOfOperand}},
    {isAttention, {axesOfAttention, sizeOfProduct, inFloats<dtypeOfAttention>}},
    {takesShape, {axesOfOther, sizeOfOther}},
    {[](auto* n) { return reducedAxes(n).has_value(); }, {.axes = axesOfReduced, .demand = holdsReduced}},
    {isCount, {axesAlways<1>, sizeOfCount}},
    {[](auto* n) { return sizesMade(n) != nullptr; }, {axesOfSizes, sizeOfMade}},
    {isRecurrentLayer, {axesAlways<3>, sizeOfSteps}}, // results and states
    {[](auto* n) { return einsumLabels(n).has_value(); }, {axesOfEinsum, sizeOfEinsum}},
    {broadcasts, {axesOfBroadcast, sizeOfBroadcast}},
    {isRecurrent, {.dtype = inFloats<dtypeOfStates>}},
    {[](auto* n) { return resultDtype(n).has_value(); }, {.dtype = dtypeOfKind}},
    {[](auto* n) { return movesData(n) || isDropout(n) || staysWithin(n); }, {.dtype = dtypeOfOperand}},
    {isElementwise, {.dtype = dtypeOfTensors}},
};

// The function in a column: of the row of the node's kind, or else of the first family that holds the node and has the
// column. Null if there is none.
template <typename Function>
Function* column(const Node* node, Function* Row::* of) {
  const auto known = rowsByKind().find(node->kind());
  if (known != rowsByKind().end() && known->second.*of != nullptr) {
    return known->second.*of;
  }
  for (const auto& [holds, row] : kFamilies) {
    if (row.*of != nullptr && holds(node)) {
      return row.*of;
    }
  }
  return nullptr;
}

} // namespace

std::optional<ResultAxes> axesOfResult(const Value* result, const AxisFacts& facts) {
  auto* const axes = column(result->node(), &Row::axes);
  return axes != nullptr ? axes(result->node(), facts) : std::nullopt;
}

std::optional<Extent> sizeOfResult(const Value* result, int64_t axis, const SizeFacts& facts) {
  auto* const size = column(result->node(), &Row::size);
  return size != nullptr ? size(result, axis, facts) : std::nullopt;
}

std::optional<ResultDtype> dtypeOfResult(const Value* result) {
  if (auto asked = dtypeAsked(result)) {
    return asked;
  }
  auto* const dtype = column(result->node(), &Row::dtype);
  return dtype != nullptr ? dtype(result) : std::nullopt;
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
  auto* const demand = use.offset == 0 ? column(node, &Row::demand) : nullptr;
  return demand != nullptr ? demand(node) : AxisRange();
}

} // namespace jit_passes
