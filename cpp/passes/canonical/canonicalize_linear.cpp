// Bring the spellings of a linear layer to one.
//
//   aten::addmm(%b, %x, %wt, 1, 1)                       ->  aten::linear(%x, %w, %b)
//   aten::add(aten::matmul(%x, %wt), %b, 1)              ->  aten::linear(%x, %w, %b)
//   aten::matmul(%x, %wt) and aten::mm(%x, %wt)          ->  aten::linear(%x, %w, None)
//
// where %wt is a constant matrix or fixed (see KnownValues), a parameter say, %w its transpose and %b a vector of %w's
// rows. Of a parameter, %w is aten::t(%wt), or what %wt is aten::t of.
#include "facts/known_values.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

class Canonicalizer {
 public:
  explicit Canonicalizer(const PassContext& context) : known_(context, /*attributes_apart=*/true) {}

  bool replaceAddmm(Node* node) {
    const auto weight = matrix(inputOf(node, "mat2"));
    // beta and alpha by position: another overload has a dtype in front of them
    if (!weight || known_.fixed(node->output()) || !isBiasOf(inputOf(node, "self"), *weight) ||
        constantNumber(node->input(3)) != 1.0 || constantNumber(node->input(4)) != 1.0) {
      return false;
    }
    replaceByLinear(node, inputOf(node, "mat1"), inputOf(node, "mat2"), inputOf(node, "self"));
    return true;
  }

  bool replaceMatmul(Node* node) {
    const auto weight = matrix(node->input(1));
    if (!weight || known_.fixed(node->output())) { // of two parameters it is a weight, and no layer
      return false;
    }
    const auto& uses = node->output()->uses();
    Node* user = uses.size() == 1 ? uses[0].user : nullptr;
    const bool adds_bias = user && user->kind() == aten::add && user->inputs().size() == 3 &&
                           user->owningBlock() == node->owningBlock() &&
                           constantNumber(user, "alpha") == 1.0 &&
                           isBiasOf(user->input(1 - uses[0].offset), *weight);
    Value* bias = nullptr;
    if (adds_bias) { // in the place of the product: its operand may be written to before the sum is taken
      bias = user->input(1 - uses[0].offset);
      hoist(bias, node);
      user->output()->replaceAllUsesWith(node->output());
      user->destroy();
    }
    replaceByLinear(node, node->input(0), node->input(1), bias);
    return true;
  }

 private:
  std::optional<at::Tensor> matrix(const Value* value) const {
    const auto found = known_.tensor(value);
    return found && found->dim() == 2 && found->is_floating_point() ? found : std::nullopt;
  }

  bool isBiasOf(const Value* value, const at::Tensor& transposed_weight) const {
    const auto bias = known_.tensor(value);
    return bias && bias->dim() == 1 && bias->size(0) == transposed_weight.size(1) &&
           bias->scalar_type() == transposed_weight.scalar_type();
  }

  static Value* transposed(Value* matrix, Node* before) {
    if (const auto constant = constantTensor(matrix)) {
      return insertConstant(before, constant->t().contiguous());
    }
    return isTranspose(matrix->node()) ? mainOperand(matrix->node())
                                       : insertValue(before, aten::t, {matrix}, before);
  }

  static void replaceByLinear(Node* node, Value* x, Value* transposed_weight, Value* bias) {
    Value* weight = transposed(transposed_weight, node);
    Value* none = bias ? bias : insertConstant(node, c10::IValue());
    replaceNode(node, insertValue(node, aten::linear, {x, weight, none}, node));
  }

  KnownValues known_;
};

bool canonicalizeLinear(PassContext& context) {
  static const auto addmm = symbol("aten::addmm");
  static const auto mm = symbol("aten::mm");
  bool changed = false;
  // Replacing one may destroy its user, so they are collected first.
  const auto products = nodesWhere(*context.graph(), [&](const Node* node) {
    return node->kind() == addmm || node->kind() == mm || node->kind() == aten::matmul;
  });
  Canonicalizer canonicalizer(context);
  for (Node* node : products) {
    changed |= node->kind() == addmm ? canonicalizer.replaceAddmm(node) : canonicalizer.replaceMatmul(node);
  }
  return changed;
}

const RegisterPass canonicalize_linear_pass{
    "canonicalize_linear", "Turn addmm, mm and matmul by a constant matrix or a parameter into linear.",
    canonicalizeLinear, needs("inlined")};

} // namespace
} // namespace jit_passes
