// Compute values that depend on constants alone, and values that are constant unless the model raises an error.
//
// The result of a branch whose other side raises an error:
//
//   %y : Tensor = prim::If(%wrong)
//     block0():
//        = prim::RaiseException(...)
//       -> (%uninitialized)
//     block1():
//       -> (%constant)
//   %z = aten::linear(%x, %w, %y)                   ->   %z = aten::linear(%x, %w, %constant)
//
// The sizes into which a constant is split, if they depend on one unknown number: only one number gives no error.
// nn.MultiheadAttention splits its weight so if key and value are one tensor.
//
//   %two_n : int = aten::mul(%n, 2)
//   %sizes : int[] = prim::ListConstruct(%n, %two_n)
//   %parts = aten::split(%constant [48, 16], %sizes, 0)   ->   with the sizes [16, 32]
#include "facts/shape_facts.h"
#include "graph/graph.h"
#include "simplify.h"

namespace jit_passes {
namespace {

bool takeWhatDoesNotRaise(Node* branch) {
  if (branch->kind() != prim::If || alwaysRaises(branch->blocks()[0]) == alwaysRaises(branch->blocks()[1])) {
    return false;
  }
  Block* other = branch->blocks()[alwaysRaises(branch->blocks()[0])];
  bool changed = false;
  for (size_t i = 0; i < branch->outputs().size(); ++i) {
    Value* constant = other->outputs()[i];
    Value* result = branch->output(i);
    if (!isConstant(constant) || !result->hasUses() || !constant->type()->isSubtypeOf(*result->type())) {
      continue;
    }
    if (constant->node()->owningBlock() == other) {
      constant->node()->moveBefore(branch);
    }
    result->replaceAllUsesWith(constant);
    changed = true;
  }
  return changed;
}

// A size as a multiple of an unknown number.
std::pair<Value*, int64_t> multipleOf(Value* size) {
  static const std::unordered_set<c10::Symbol> casts{
      aten::Int, prim::NumToTensor, symbol("aten::ScalarImplicit")};
  int64_t factor = 1;
  for (Node* node = size->node();; node = size->node()) {
    if (casts.count(node->kind())) {
      size = mainOperand(node);
      continue;
    }
    const bool multiplies = node->kind() == aten::mul;
    const auto first = multiplies ? wholeNumber(node->input(0)) : std::nullopt;
    const auto second = multiplies ? wholeNumber(node->input(1)) : std::nullopt;
    if (!first && !second) {
      return {size, factor};
    }
    factor *= first ? *first : *second;
    size = node->input(first ? 1 : 0);
  }
}

bool findSplitSizes(Node* node) {
  static const std::unordered_set<c10::Symbol> kinds{aten::split, aten::split_with_sizes};
  if (!kinds.count(node->kind()) || node->input(1)->node()->kind() != prim::ListConstruct) {
    return false;
  }
  const auto constant = constantTensor(node, "self");
  const auto axis = constantNumber(node, "dim");
  const auto sizes = node->input(1)->node()->inputs();
  if (!constant || !axis || *axis < -constant->dim() || *axis >= constant->dim() || sizes.empty()) {
    return false;
  }
  Value* unknown = multipleOf(sizes[0]).first;
  std::vector<int64_t> found;
  for (Value* size : sizes) {
    const auto [base, factor] = multipleOf(size);
    if (base != unknown || isConstant(base) || factor < 1) {
      return false;
    }
    found.push_back(factor);
  }
  const int64_t total = std::accumulate(found.begin(), found.end(), int64_t{0});
  const int64_t whole = constant->size(static_cast<int64_t>(*axis));
  if (whole % total != 0) {
    return false;
  }
  for (int64_t& size : found) {
    size *= whole / total;
  }
  node->replaceInput(1, insertConstant(node, found));
  return true;
}

// Whether PyTorch's pass could change anything. PyTorch's pass analyses aliases of the whole graph before it looks
// for work.
bool hasWorkFor(const Node* node) {
  return node->kind() != prim::Constant &&
         (!node->blocks().empty() || std::ranges::all_of(node->inputs(), isConstant));
}

} // namespace

bool propagateConstants(PassContext& context) {
  auto graph = context.graph();
  bool changed = changeNodes(*graph, findSplitSizes);
  if (!nodesWhere(*graph, hasWorkFor).empty()) {
    changed |= context.option("tensors").toBool() ? torch::jit::ConstantPropagation(graph)
                                                  : torch::jit::ConstantPropagationImmutableTypes(graph);
  }
  return changeNodes(*graph, takeWhatDoesNotRaise) || changed;
}

} // namespace jit_passes
