// Fuse a concatenation of any number of dequantized tensors.
//
//   %l = prim::ListConstruct(dequantize(%a, ...), dequantize(%b, ...), ...)
//   %y = aten::cat(%l, %dim)                                 (%r = aten::relu(%y))
//   %q = jit_passes::quantize(%y, scale, zero_point, ...)
//     ->  %l = prim::ListConstruct(%a, %b, ...)
//         %q = quantized::cat(%l, %dim, scale, zero_point)   or quantized::cat_relu
#include "core/alias.h"
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

using c10::Symbol;

const auto quantize = Symbol::fromQualString("jit_passes::quantize");
const auto dequantize = Symbol::fromQualString("jit_passes::dequantize");

bool usedOnce(const Value* value) { return value->uses().size() == 1; }

bool fuse(Node* node) {
  Node* cat = node->input(0)->node();
  const bool relu = cat->kind() == c10::aten::relu && usedOnce(cat->output());
  if (relu) {
    cat = cat->input(0)->node();
  }
  if (cat->kind() != c10::aten::cat || !usedOnce(cat->output())) {
    return false;
  }
  Node* list = cat->input(0)->node();
  const auto is_dequantize = [](const Value* value) { return value->node()->kind() == dequantize; };
  if (list->kind() != c10::prim::ListConstruct || !usedOnce(list->output()) || list->inputs().empty() ||
      !std::all_of(list->inputs().begin(), list->inputs().end(), is_dequantize)) {
    return false;
  }
  for (size_t i = 0; i < list->inputs().size(); ++i) {
    list->replaceInput(i, list->input(i)->node()->input(0));
  }
  const auto kind = Symbol::fromQualString(relu ? "quantized::cat_relu" : "quantized::cat");
  const std::vector<Value*> operands{list->output(), cat->input(1), node->input(1), node->input(2)};
  replaceNode(node, insertNode(node, kind, operands, cat)->output());
  return true;
}

bool fuseCat(PassContext& context) {
  bool changed = false;
  forEachNode(*context.graph(), [&](Node* node) { changed |= node->kind() == quantize && fuse(node); });
  if (changed) {
    removeDeadNodes(context.graph());
  }
  return changed;
}

const RegisterPass registration{
    "fuse_cat",
    "Fuse a concatenation of dequantized tensors into quantized::cat.",
    fuseCat,
    {"no_observers"}};

} // namespace
} // namespace jit_passes
