// Replace sizes that the graph knows by numbers.
//
//   %c : int = aten::size(%x, 2), %x from a layer with 16 features       ->   %c : int = prim::Constant[value=16]()
//   %y = aten::slice(%x, 2, 0, %c // 2, 1)                               ->   aten::slice(%x, 2, 0, 8, 1)
//
// An axis that is repeated as often as it is long stays as it is:
//
//   %y = aten::expand(%x, [aten::size(%x, 0), 4, -1], %no)                      ->   aten::expand(%x, [-1, 4, -1], %no)
//
// A comparison of sizes that are equal for certain becomes a constant. PyTorch's attention compares the sizes of
// keys and values:
//
//   %b : bool = aten::ne(aten::size(%k), aten::size(%v))                        ->   %b : bool = prim::Constant[value=0]()
//
// Only tensors that raise an error could have other sizes. Convolutions and pools take data with a batch axis and
// without one, so only their operands tell the rank.
#include "facts/shape_facts.h"
#include "facts/shapes.h"
#include "graph/graph.h"
#include "simplify.h"

namespace jit_passes {
namespace {

// The positions in a list of sizes where the size is the operand's own.
std::vector<size_t> keptSizes(const Shapes& shapes, const Node* expand) {
  std::vector<size_t> kept;
  const Node* list = inputOf(expand, "size")->node();
  const auto own = shapes.rank(inputOf(expand, "self"));
  const bool written = shapes.isWritten(inputOf(expand, "size")) || shapes.isWritten(inputOf(expand, "self"));
  if (!own || list->kind() != prim::ListConstruct || written || shapes.isWritten(expand->output())) {
    return kept;
  }
  const int64_t more = int64_t(list->inputs().size()) - *own;
  for (int64_t i = std::max<int64_t>(more, 0); i < int64_t(list->inputs().size()); ++i) {
    const Extent size = shapes.ofNumber(list->input(i));
    if (!size.isNumber() && size == shapes.ofAxis(inputOf(expand, "self"), i - more)) {
      kept.push_back(i);
    }
  }
  return kept;
}

// Whether the node compares sizes, numbers or lists, that are equal for certain.
bool comparesEqual(const Shapes& shapes, const Node* node) {
  if ((node->kind() != aten::eq && node->kind() != aten::ne) || node->inputs().size() != 2) {
    return false;
  }
  const Value *a = node->input(0), *b = node->input(1);
  const auto isOf = [&](c10::TypeKind kind) {
    return a->type()->kind() == kind && b->type()->kind() == kind;
  };
  if (isOf(c10::TypeKind::IntType)) {
    return shapes.ofNumber(a) == shapes.ofNumber(b);
  }
  const bool lists = isOf(c10::TypeKind::ListType) && !shapes.isWritten(a) && !shapes.isWritten(b);
  const auto sizes = lists ? shapes.ofList(a) : std::nullopt;
  return sizes && sizes == shapes.ofList(b);
}

bool isComputedNumber(const Value* value) {
  return value->type()->kind() == c10::TypeKind::IntType && value->hasUses() && !isConstant(value) &&
         value->node()->kind() != prim::Param && value->node()->blocks().empty();
}

} // namespace

bool foldSizes(PassContext& context) {
  const auto graph = context.graph();
  const auto has_sizes = [](const Node* node) {
    return node->kind() == aten::expand || node->kind() == aten::size ||
           std::ranges::any_of(node->outputs(), isComputedNumber);
  };
  if (nodesWhere(*graph, has_sizes).empty()) {
    return false;
  }
  const Shapes shapes(context, Images::Unknown);
  std::vector<std::pair<Value*, int64_t>> numbers; // all before the first edit, which changes the facts
  std::vector<std::pair<Node*, std::vector<size_t>>> repeated;
  const auto compared = nodesWhere(*graph, [&](const Node* node) { return comparesEqual(shapes, node); });
  forEachNode(*graph, [&](Node* node) {
    for (Value* output : node->outputs()) {
      if (!isComputedNumber(output)) {
        continue;
      }
      if (const auto number = shapes.ofNumber(output).number()) {
        numbers.emplace_back(output, *number);
      }
    }
    if (node->kind() == aten::expand) {
      if (auto kept = keptSizes(shapes, node); !kept.empty()) {
        repeated.emplace_back(node, std::move(kept));
      }
    }
  });
  for (Node* node : compared) {
    replaceNode(node, insertConstant(node, node->kind() == aten::eq));
  }
  for (const auto& [node, kept] : repeated) {
    std::vector<Value*> sizes = inputOf(node, "size")->node()->inputs().vec();
    for (const size_t i : kept) {
      sizes[i] = insertConstant(node, int64_t{-1});
    }
    node->replaceInput(1, insertValue(node, prim::ListConstruct, sizes, node, c10::ListType::ofInts()));
  }
  for (const auto& [value, number] : numbers) {
    Node* maker = value->node();
    value->replaceAllUsesWith(insertConstant(maker, number));
  }
  return !compared.empty() || !numbers.empty() || !repeated.empty();
}

} // namespace jit_passes
