// Ask for single sizes where a slice of the list of sizes is read.
//
//   %s : int[] = aten::size(%x)                        %h : int = aten::size(%x, -2)
//   %p : int[] = aten::slice(%s, -2, None, 1)     ->   %w : int = aten::size(%x, -1)
//   %y = aten::upsample_bilinear2d(%z, %p, ...)        %p : int[] = prim::ListConstruct(%h, %w)
//
// The tensor must have enough axes for certain: a slice of a shorter list would have fewer elements.
#include "facts/known_values.h"
#include "facts/shape_facts.h"
#include "facts/shapes.h"
#include "graph/operators.h"
#include "simplify.h"

namespace jit_passes {
namespace {

class SizeLists {
 public:
  explicit SizeLists(const PassContext& context) : known_(context), shapes_(context, Images::Unknown) {}

  // The list of single sizes that replaces a slice; null unless the tensor has these axes for certain.
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
    if (end == 0 || start.value_or(0) < -kMostAxes) { // an empty slice, or the whole list
      return nullptr;
    }
    if (start.value_or(0) < 0 && (isNone(slice, "end") || end.value_or(0) > kMostAxes)) {
      end = 0;
    }
    // Start and end count from one end.
    if (known_.isWritten(tensor) || !start || !end || *start >= *end || (*start < 0 && *end > 0)) {
      return nullptr;
    }
    if (shapes_.leastRank(tensor) < std::max(-*start, *end)) {
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
