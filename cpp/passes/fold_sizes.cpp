// Replace sizes that the graph knows by numbers.
//
//   %c : int = aten::size(%x, 2), of what a layer of 16 features gives   ->   %c : int = prim::Constant[value=16]()
//   %y = aten::slice(%x, 2, 0, %c // 2, 1)                               ->   aten::slice(%x, 2, 0, 8, 1)
//
// An axis that is repeated as often as it is long stays as it is:
//
//   %y = aten::expand(%x, [aten::size(%x, 0), 4, -1], %no)                      ->   aten::expand(%x, [-1, 4, -1], %no)
//
// Only tensors that would be refused could have other sizes. Convolutions and pools take data with a batch axis and
// without one, so only their operands say how many axes there are.
#include "core/graph.h"
#include "core/registry.h"
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

bool isComputedNumber(const Value* value) {
  return value->type()->kind() == c10::TypeKind::IntType && value->hasUses() && !isConstant(value) &&
         value->node()->kind() != prim::Param && value->node()->blocks().empty();
}

bool foldSizes(PassContext& context) {
  const auto graph = context.graph();
  const Shapes shapes(context, /*batched=*/false);
  std::vector<std::pair<Value*, int64_t>> numbers; // all of them before the first edit, as others go by them
  std::vector<std::pair<Node*, std::vector<size_t>>> repeated;
  forEachNode(*graph, [&](Node* node) {
    for (Value* output : node->outputs()) {
      const Extent extent = isComputedNumber(output) ? shapes.ofNumber(output) : Extent{output};
      if (extent.isNumber()) {
        numbers.emplace_back(output, extent.number);
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
  return !numbers.empty() || !repeated.empty();
}

const RegisterPass fold_sizes_pass{
    "fold_sizes", "Replace sizes that the graph knows by numbers.", foldSizes, needs("inlined")};

} // namespace
} // namespace jit_passes
