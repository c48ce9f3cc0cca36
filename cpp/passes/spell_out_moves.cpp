// Write what only moves elements as the operators that it is made of, for targets that have these.
//
//   %y = aten::stack([%a, %b], -1)                 ->   %c = aten::unsqueeze(%a, -1)
//                                                       %d = aten::unsqueeze(%b, -1)
//                                                       %y = aten::cat([%c, %d], -1)
//
//   %y = aten::repeat_interleave(%x, %n, 1)        ->   %u = aten::unsqueeze(%x, 2)
//                                                       %e = aten::expand(%u, [-1, -1, %n, -1], False)
//                                                       %y = aten::flatten(%e, 1, 2)
//
// Rotary embeddings stack what they have turned, and models repeat keys for the queries that share them.
#include "core/registry.h"
#include "core/shapes.h"

namespace jit_passes {
namespace {

const auto repeat_interleave = symbol("aten::repeat_interleave");

Value* spelledStack(Node* node) {
  const Node* list = node->input(0)->node();
  if (list->kind() != prim::ListConstruct) {
    return nullptr;
  }
  std::vector<Value*> elements;
  for (Value* element : const_cast<Node*>(list)->inputs()) {
    elements.push_back(insertValue(node, aten::unsqueeze, {element, node->input(1)}, node));
  }
  const auto type = c10::ListType::ofTensors();
  return insertValue(
      node, aten::cat, {insertValue(node, prim::ListConstruct, elements, node, type), node->input(1)}, node);
}

// Of a number for all elements, along an axis.
Value* spelledRepeat(Node* node, const Shapes& shapes) {
  if (node->inputs().size() != 4 || isTensor(node->input(1))) {
    return nullptr;
  }
  const auto rank = shapes.rank(node->input(0));
  const auto given = constantNumber(node->input(2));
  const bool fails = constantNumber(node->input(1)).value_or(0) < 0;
  if (!rank || !given || *given < -*rank || *given >= *rank || fails) {
    return nullptr;
  }
  const int64_t axis = static_cast<int64_t>(*given) + (*given < 0 ? *rank : 0);
  Value *first = insertConstant(node, axis), *second = insertConstant(node, axis + 1);
  std::vector<Value*> sizes(*rank + 1, insertConstant(node, int64_t{-1}));
  sizes[axis + 1] = node->input(1);
  Value* more = insertValue(node, aten::unsqueeze, {node->input(0), second}, node);
  Value* list = insertValue(node, prim::ListConstruct, sizes, node, c10::ListType::ofInts());
  Value* repeated = insertValue(node, aten::expand, {more, list, insertConstant(node, false)}, node);
  return insertValue(node, aten::flatten, {repeated, first, second}, node);
}

bool spellOutMoves(PassContext& context) {
  const auto moves = [](const Node* node) {
    return node->kind() == aten::stack || node->kind() == repeat_interleave;
  };
  if (nodesWhere(*context.graph(), moves).empty()) { // shapes take time
    return false;
  }
  const Shapes shapes(context);
  return replaceNodes(*context.graph(), [&](Node* node) -> Value* {
    const auto is_written = [&](const Value* value) { return shapes.isWritten(value); };
    if (!moves(node) || is_written(node->output()) || is_written(node->input(0)) ||
        std::ranges::any_of(node->input(0)->node()->inputs(), is_written)) {
      return nullptr;
    }
    return node->kind() == aten::stack ? spelledStack(node) : spelledRepeat(node, shapes);
  });
}

const RegisterPass spell_out_moves_pass{
    "spell_out_moves", "Write stack and repeat_interleave as the operators that they are made of.",
    spellOutMoves, needs("inlined")};

} // namespace
} // namespace jit_passes
