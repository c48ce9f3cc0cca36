// Remark on each convolution, linear and matrix product that is left in float why it is not fused.
//
//   %x = jit_passes::dequantize(%q, ...)
//   %y = aten::linear(%x, %w, %b)           remark: its weight is not quantized
//
// The last step of lowering: users and reports read the remarks, and the invariant float_explained holds from here
// on. A linear whose weight alone is quantized needs no remark.
#include "graph/names.h"
#include "graph/operators.h"
#include "graph/registry.h"
#include "weight_alone.h"

namespace jit_passes {
namespace {

bool isProduct(const Node* node) {
  static const auto products =
      symbols({"aten::matmul", "aten::bmm", "aten::mm", "aten::addmm", "aten::baddbmm"});
  return (weightedOperator(node) || products.count(node->kind()) > 0) && !weightAlone(node);
}

bool isQuantized(const Value* value) {
  return std::ranges::any_of(value->uses(), [](const Use& use) {
    const bool clips = use.user->kind() == aten::relu || use.user->kind() == aten::clamp;
    return startsWith(use.user, "jit_passes::quantize") || (clips && isQuantized(use.user->output()));
  });
}

std::string reasonOf(const Node* node) {
  const bool weighted = weightedOperator(node).has_value();
  if (!startsWith(mainOperand(node)->node(), "jit_passes::dequantize")) {
    return "its input is not quantized";
  }
  if (!startsWith(node->input(1)->node(), "jit_passes::dequantize")) {
    return weighted ? "its weight is not quantized" : "its second operand is not quantized";
  }
  return isQuantized(node->output()) ? "the target has no operator for it" : "its result is not quantized";
}

bool remarkFloat(PassContext& context) {
  forEachNode(*context.graph(), [&](Node* node) {
    if (isProduct(node)) {
      context.remark(node, reasonOf(node));
    }
  });
  return false;
}

std::optional<std::string> checkFloatExplained(const PassContext& context) {
  std::unordered_set<std::string> explained;
  for (const auto& remark : context.remarks()) {
    explained.insert(remark.name);
  }
  const auto left = nodesWhere(*context.graph(), isProduct);
  const NodeNames names = left.empty() ? NodeNames() : nodeNames(*context.graph());
  const auto found = std::find_if(
      left.begin(), left.end(), [&](const Node* node) { return explained.count(names.at(node)) == 0; });
  return found == left.end() ? std::nullopt
                             : std::optional("no remark says why this is in float: " + describe(*found));
}

const RegisterInvariant float_explained{
    "float_explained", "Convolutions, linears and products in float have a remark.", checkFloatExplained};
const RegisterPass remark_float_pass{
    "remark_float", "Say why convolutions, linears and products are left in float.", remarkFloat,
    needs("no_observers"), ensures("float_explained")};

} // namespace
} // namespace jit_passes
