// Turn a division by a power of two into a product.
//
//   %y = aten::div(%x, 8)   ->   %y = aten::mul(%x, 0.125)
//
// A divider takes many times the area of a multiplier, and the result is the same to the last bit:
// both only change the exponent. Other divisors stay, because their reciprocals are rounded.
#include <jit_passes/graph.h>
#include <jit_passes/registry.h>

#include <cmath>

namespace {

using torch::jit::Node;

bool isPowerOfTwo(double number) {
  int exponent = 0;
  const double mantissa = std::frexp(std::abs(number), &exponent);
  return mantissa == 0.5 && std::abs(exponent) <= 100; // and so is its reciprocal, in a float
}

bool replaceDivision(jit_passes::PassContext& context) {
  bool changed = false;
  jit_passes::forEachNode(*context.graph(), [&](Node* node) {
    // Three operands are a division with rounding, and a division of two numbers is none of tensors.
    if (node->kind() != c10::aten::div || node->inputs().size() != 2 ||
        !node->output()->type()->isSubtypeOf(*c10::TensorType::get())) {
      return;
    }
    const auto divisor = jit_passes::constantNumber(node->input(1));
    if (!divisor || !isPowerOfTwo(*divisor)) {
      return;
    }
    auto* factor = jit_passes::insertConstant(node, 1.0 / *divisor);
    auto* product = jit_passes::insertNode(node, c10::aten::mul, {node->input(0), factor}, node);
    jit_passes::replaceNode(node, product->output());
    changed = true;
  });
  return changed;
}

const jit_passes::RegisterPass registration{
    "replace_division", "Turn division by a power of two into a product.", replaceDivision, {"inlined"}};

} // namespace
