// Replace sizes that the graph knows by numbers, and ask for others in front of recurrent layers.
//
//   %c : int = aten::size(%x, 2), of what a layer of 16 features gives   ->   %c : int = prim::Constant[value=16]()
//   %y = aten::slice(%x, 2, 0, %c // 2, 1)                               ->   aten::slice(%x, 2, 0, 8, 1)
//
// Others are asked of what the model takes, or a recurrent layer reads, if that has them, so that the states with which the
// next layer begins need not wait for this one. No other tensor is asked: who computes it may keep it for itself.
//
//   %y, %h = aten::gru(%x, ...)
//   %n : int = aten::size(%y, 0)                                         ->   %n : int = aten::size(%x, 0)
//
// An axis that is repeated as often as it is long stays as it is:
//
//   %y = aten::expand(%x, [aten::size(%x, 0), 4, -1], %no)                      ->   aten::expand(%x, [-1, 4, -1], %no)
//
// Only tensors that would be refused could have other sizes. Convolutions and pools take data with a batch axis and
// without one, so only their operands say how many axes there are.
#include "core/graph.h"
#include "core/registry.h"
#include "core/shape_facts.h"
#include "core/shapes.h"

namespace jit_passes {
namespace {

// The positions in a list of sizes that are those of the operand.
std::vector<size_t> keptSizes(const Shapes& shapes, const Node* expand) {
  std::vector<size_t> kept;
  const Node* list = expand->input(1)->node();
  const auto own = shapes.rank(expand->input(0));
  const bool written = shapes.isWritten(expand->input(1)) || shapes.isWritten(expand->input(0));
  if (!own || list->kind() != prim::ListConstruct || written || shapes.isWritten(expand->output())) {
    return kept;
  }
  const int64_t more = int64_t(list->inputs().size()) - *own;
  for (int64_t i = std::max<int64_t>(more, 0); i < int64_t(list->inputs().size()); ++i) {
    const Extent size = shapes.ofNumber(list->input(i));
    if (!size.isNumber() && size == shapes.ofAxis(expand->input(0), i - more)) {
      kept.push_back(i);
    }
  }
  return kept;
}

struct Axis {
  Value* tensor;
  int64_t number;
};

// Where an operator that asks for a size may ask instead: `read` is what recurrent layers read.
std::optional<Axis> elsewhere(
    const Shapes& shapes, const Node* size, const Extent& extent, const std::vector<Value*>& read) {
  const bool asks = size->kind() == aten::size && size->inputs().size() == 2;
  if (!asks || extent.isNumber() || extent.number < 0 || !isTensor(extent.value)) {
    return std::nullopt;
  }
  const Node* maker = extent.value->node();
  if (maker->kind() == prim::Param && maker->owningBlock() == size->owningGraph()->block()) {
    return extent.value == size->input(0)
               ? std::nullopt
               : std::optional(Axis{const_cast<Value*>(extent.value), extent.number});
  }
  for (Value* tensor : read) {
    for (const int64_t axis : {0, 1}) {
      if (tensor->node()->owningBlock() == size->owningBlock() && tensor->node()->isBefore(size) &&
          shapes.ofAxis(tensor, axis) == extent) {
        return tensor == size->input(0) ? std::nullopt : std::optional(Axis{tensor, axis});
      }
    }
  }
  return std::nullopt;
}

bool isComputedNumber(const Value* value) {
  return value->type()->kind() == c10::TypeKind::IntType && value->hasUses() && !isConstant(value) &&
         value->node()->kind() != prim::Param && value->node()->blocks().empty();
}

bool foldSizes(PassContext& context) {
  const auto graph = context.graph();
  const Shapes shapes(context, /*batched=*/false);
  std::vector<std::pair<Value*, int64_t>> numbers; // all of them before the first edit, as others go by them
  std::vector<std::pair<Node*, std::vector<size_t>>> repeated;
  std::vector<std::pair<Node*, Axis>> asked;
  std::vector<Value*> read;
  for (Node* node : nodesWhere(*graph, isRecurrentLayer)) {
    read.push_back(node->input(0));
  }
  forEachNode(*graph, [&](Node* node) {
    for (Value* output : node->outputs()) {
      const Extent extent = isComputedNumber(output) ? shapes.ofNumber(output) : Extent{output};
      if (extent.isNumber()) {
        numbers.emplace_back(output, extent.number);
      } else if (const auto axis = elsewhere(shapes, node, extent, read)) {
        asked.emplace_back(node, *axis);
      }
    }
    if (node->kind() == aten::expand) {
      if (auto kept = keptSizes(shapes, node); !kept.empty()) {
        repeated.emplace_back(node, std::move(kept));
      }
    }
  });
  for (const auto& [node, kept] : repeated) {
    std::vector<Value*> sizes = node->input(1)->node()->inputs().vec();
    for (const size_t i : kept) {
      sizes[i] = insertConstant(node, int64_t{-1});
    }
    node->replaceInput(1, insertValue(node, prim::ListConstruct, sizes, node, c10::ListType::ofInts()));
  }
  for (const auto& [value, number] : numbers) {
    Node* maker = value->node();
    value->replaceAllUsesWith(insertConstant(maker, number));
  }
  for (const auto& [size, axis] : asked) {
    size->replaceInput(0, axis.tensor);
    size->replaceInput(1, insertConstant(size, axis.number));
  }
  return !numbers.empty() || !repeated.empty() || !asked.empty();
}

const RegisterPass fold_sizes_pass{
    "fold_sizes",
    "Replace sizes that the graph knows by numbers, and ask for others in front of recurrent layers.",
    foldSizes, needs("inlined")};

} // namespace
} // namespace jit_passes
