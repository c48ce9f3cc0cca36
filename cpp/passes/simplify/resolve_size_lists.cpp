// Ask for sizes one by one where a part of their list is read.
//
//   %s : int[] = aten::size(%x)                        %h : int = aten::size(%x, -2)
//   %p : int[] = aten::slice(%s, -2, None, 1)     ->   %w : int = aten::size(%x, -1)
//   %y = aten::upsample_bilinear2d(%z, %p, ...)        %p : int[] = prim::ListConstruct(%h, %w)
//
// The tensor has as many axes for certain: a part of a shorter list would have fewer elements.
#include "facts/known_values.h"
#include "facts/shape_facts.h"
#include "facts/shapes.h"
#include "graph/operators.h"
#include "simplify.h"

namespace jit_passes {
namespace {

constexpr int64_t kMostAxes = 64; // of a tensor of PyTorch's

// Axes that the first operand of an operator has at least: its images may have no batch.
int64_t leastAxesOf(const Node* node) {
  const auto weighted = weightedOperator(node);
  const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node);
  return spatial > 0 ? spatial + 1 : 0;
}

class SizeLists {
 public:
  explicit SizeLists(const PassContext& context) : known_(context), shapes_(context, /*batched=*/false) {}

  // The list that stands for a part of one; null where it is none of sizes that the tensor has.
  Value* listOf(Node* slice) const {
    const Node* size = slice->kind() == aten::slice ? mainOperand(slice)->node() : nullptr;
    if (size == nullptr || size->kind() != aten::size || size->inputs().size() != 1 ||
        known_.isWritten(size->output()) || known_.isWritten(slice->output()) ||
        wholeNumber(inputOf(slice, "step")) != 1) {
      return nullptr;
    }
    Value* tensor = inputOf(size, "self");
    const auto start = isNone(slice, "start") ? 0 : wholeNumber(inputOf(slice, "start"));
    auto end = wholeNumber(inputOf(slice, "end"));
    if (end == 0 || start.value_or(0) < -kMostAxes) { // nothing, or all
      return nullptr;
    }
    if (start.value_or(0) < 0 && (isNone(slice, "end") || end.value_or(0) > kMostAxes)) {
      end = 0;
    }
    // Both count from the same end.
    if (known_.isWritten(tensor) || !start || !end || *start >= *end || (*start < 0 && *end > 0)) {
      return nullptr;
    }
    if (leastAxes(tensor, slice) < std::max(-*start, *end)) {
      return nullptr;
    }
    std::vector<Value*> sizes;
    for (int64_t axis = *start; axis < *end; ++axis) {
      sizes.push_back(
          insertValue(slice, aten::size, {tensor, insertConstant(slice, axis)}, slice, c10::IntType::get()));
    }
    return insertValue(slice, prim::ListConstruct, sizes, slice, c10::ListType::ofInts());
  }

 private:
  // By its type, by whoever makes it, and by those that read it in the same block.
  int64_t leastAxes(const Value* tensor, const Node* asks) const {
    int64_t least = shapes_.rank(tensor).value_or(0);
    for (const Use& use : tensor->uses()) {
      if (use.offset == 0 && use.user->owningBlock() == asks->owningBlock()) {
        least = std::max(least, leastAxesOf(use.user));
      }
    }
    const Node* maker = tensor->node();
    while (isElementwise(maker) && isTensor(mainOperand(maker))) {
      maker = mainOperand(maker)->node();
    }
    return std::max(least, leastAxesOf(maker));
  }

  KnownValues known_;
  Shapes shapes_;
};

} // namespace

bool resolveSizeLists(PassContext& context) {
  const auto asks = [](const Node* node) { return node->kind() == aten::slice && !isTensor(node->output()); };
  if (nodesWhere(*context.graph(), asks).empty()) {
    return false;
  }
  const SizeLists lists(context);
  return replaceNodes(*context.graph(), [&](Node* node) { return lists.listOf(node); });
}

} // namespace jit_passes
