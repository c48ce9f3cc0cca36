// Turn lists of constant numbers into constants, if no node changes them.
//
//   %l : int[] = prim::ListConstruct(%one, %two)   ->   %l : int[] = prim::Constant[value=[1, 2]]()
#include "graph/alias.h"
#include "graph/graph.h"
#include "simplify.h"

namespace jit_passes {
namespace {

bool isListOfNumbers(const Node* node) {
  if (node->kind() != prim::ListConstruct || node->inputs().empty()) {
    return false;
  }
  const auto type = node->output()->type()->cast<c10::ListType>();
  const bool numbers = type && (type->getElementType() == c10::IntType::get() ||
                                type->getElementType() == c10::FloatType::get() ||
                                type->getElementType() == c10::BoolType::get());
  return numbers && std::ranges::all_of(node->inputs(), isConstant);
}

// Whether nodes only read the list. A list that is returned or stored could be changed later.
bool staysInside(const Value* list) {
  return std::ranges::all_of(list->uses(), [](const Use& use) { return use.user->kind().is_aten(); });
}

c10::IValue listOf(const Node* node) {
  c10::impl::GenericList list(node->output()->type()->expectRef<c10::ListType>().getElementType());
  for (const Value* input : node->inputs()) {
    list.push_back(*constantOf(input));
  }
  return list;
}

} // namespace

bool foldConstantLists(PassContext& context) {
  const auto graph = context.graph();
  const auto mayFold = [](const Node* node) { return isListOfNumbers(node) && staysInside(node->output()); };
  if (nodesWhere(*graph, mayFold).empty()) {
    return false; // this saves an alias analysis, which costs more than the rest
  }
  const auto written = writtenValues(graph);
  return replaceNodes(*graph, [&](Node* node) {
    return mayFold(node) && !written.count(node->output()) ? insertConstant(node, listOf(node)) : nullptr;
  });
}

} // namespace jit_passes
