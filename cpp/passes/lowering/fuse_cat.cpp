// Fuse a concatenation of any number of dequantized tensors.
//
//   %l = prim::ListConstruct(dequantize(%a, ...), dequantize(%b, ...), ...)
//   %y = aten::cat(%l, %dim)                                 (%r = aten::relu(%y))
//   %q = jit_passes::quantize(%y, scale, zero_point, ...)
//     ->  %l = prim::ListConstruct(%a, %b, ...)
//         %q = quantized::cat(%l, %dim, scale, zero_point)   or quantized::cat_relu
#include "graph/alias.h"
#include "graph/dialect.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

bool usedOnce(const Value* value) { return value->uses().size() == 1; }

// Why the concatenation cannot run on integers; nothing where it can.
std::optional<std::string> refusal(const Node* cat) {
  const Value* operand = inputOf(cat, "tensors");
  if (!usedOnce(cat->output())) {
    return "its float result has other users";
  }
  if (operand->node()->kind() != prim::ListConstruct || !usedOnce(operand)) {
    return "its list of tensors is made or used elsewhere too";
  }
  const auto inputs = operand->node()->inputs();
  const auto is_dequantize = [](const Value* value) { return value->node()->kind() == dequantize; };
  const bool quantized = !inputs.empty() && std::ranges::all_of(inputs, is_dequantize);
  return quantized ? std::nullopt : std::optional<std::string>("not all of its tensors are quantized");
}

bool fuse(PassContext& context, Node* node) {
  Node* cat = inputOf(node, "x")->node();
  const bool relu = cat->kind() == aten::relu && usedOnce(cat->output());
  if (relu) {
    cat = cat->input()->node();
  }
  if (cat->kind() != aten::cat) {
    return false;
  }
  if (auto reason = refusal(cat)) {
    context.remark(cat, std::move(*reason));
    return false;
  }
  Node* list = inputOf(cat, "tensors")->node();
  for (size_t i = 0; i < list->inputs().size(); ++i) {
    list->replaceInput(i, inputOf(list->input(i)->node(), "q"));
  }
  const auto kind = symbol(relu ? "quantized::cat_relu" : "quantized::cat");
  const std::vector<Value*> operands{
      list->output(), inputOf(cat, "dim"), inputOf(node, "scale"), inputOf(node, "zero_point")};
  replaceNode(node, insertValue(node, kind, operands, cat));
  return true;
}

bool fuseCat(PassContext& context) {
  const bool changed = changeNodes(
      *context.graph(), [&](Node* node) { return node->kind() == quantize && fuse(context, node); });
  if (changed) {
    removeDeadNodes(context.graph());
  }
  return changed;
}

const RegisterPass fuse_cat_pass{
    "fuse_cat", "Fuse a concatenation of dequantized tensors into quantized::cat.", fuseCat,
    needs("no_observers")};

} // namespace
} // namespace jit_passes
