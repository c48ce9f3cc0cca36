// Bring the spellings of a linear layer with a constant weight to one.
//
//   aten::addmm(%b, %x, %wt, 1, 1)                       ->  aten::linear(%x, %w, %b)
//   aten::add(aten::matmul(%x, %wt), %b, 1)              ->  aten::linear(%x, %w, %b)
//   aten::matmul(%x, %wt) and aten::mm(%x, %wt)          ->  aten::linear(%x, %w, None)
//
// where %wt is a constant matrix, %w its transpose and %b a constant vector of %w's rows.
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

std::optional<at::Tensor> constantMatrix(const Value* value) {
  const auto tensor = constantTensor(value);
  return tensor && tensor->dim() == 2 && tensor->is_floating_point() ? tensor : std::nullopt;
}

bool isBiasOf(const Value* value, const at::Tensor& transposed_weight) {
  const auto bias = constantTensor(value);
  return bias && bias->dim() == 1 && bias->size(0) == transposed_weight.size(1) &&
         bias->scalar_type() == transposed_weight.scalar_type();
}

void replaceByLinear(Node* node, Value* x, const at::Tensor& transposed_weight, Value* bias) {
  Value* weight = insertConstant(node, transposed_weight.t().contiguous());
  Value* none = bias ? bias : insertConstant(node, c10::IValue());
  Node* linear = insertNode(node, c10::aten::linear, {x, weight, none}, node);
  replaceNode(node, linear->output());
}

bool replaceAddmm(Node* node) {
  const auto weight = constantMatrix(node->input(2));
  if (!weight || !isBiasOf(node->input(0), *weight) || constantNumber(node->input(3)) != 1.0 ||
      constantNumber(node->input(4)) != 1.0) {
    return false;
  }
  replaceByLinear(node, node->input(1), *weight, node->input(0));
  return true;
}

bool replaceMatmul(Node* node) {
  const auto weight = constantMatrix(node->input(1));
  if (!weight) {
    return false;
  }
  const auto& uses = node->output()->uses();
  Node* user = uses.size() == 1 ? uses[0].user : nullptr;
  const bool adds_bias = user && user->kind() == c10::aten::add && user->inputs().size() == 3 &&
                         user->owningBlock() == node->owningBlock() &&
                         constantNumber(user->input(2)) == 1.0 &&
                         isBiasOf(user->input(1 - uses[0].offset), *weight);
  if (!adds_bias) {
    replaceByLinear(node, node->input(0), *weight, nullptr);
    return true;
  }
  // In the place of the product: its operand may be written to before the sum is taken.
  const auto bias = *constantTensor(user->input(1 - uses[0].offset));
  user->output()->replaceAllUsesWith(node->output());
  user->destroy();
  replaceByLinear(node, node->input(0), *weight, insertConstant(node, bias));
  return true;
}

bool canonicalizeLinear(PassContext& context) {
  static const auto addmm = c10::Symbol::fromQualString("aten::addmm");
  static const auto mm = c10::Symbol::fromQualString("aten::mm");
  bool changed = false;
  std::vector<Node*> products; // replacing one may destroy its user, so collect first
  forEachNode(*context.graph(), [&](Node* node) {
    if (node->kind() == addmm || node->kind() == mm || node->kind() == c10::aten::matmul) {
      products.push_back(node);
    }
  });
  for (Node* node : products) {
    changed |= node->kind() == addmm ? replaceAddmm(node) : replaceMatmul(node);
  }
  return changed;
}

const RegisterPass registration{
    "canonicalize_linear",
    "Turn addmm, mm and matmul by a constant matrix into linear.",
    canonicalizeLinear,
    {"inlined"}};

} // namespace
} // namespace jit_passes
