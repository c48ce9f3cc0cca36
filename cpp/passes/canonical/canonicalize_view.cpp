// Allow results whose memory is laid out differently than in the float model.
//
//   %y = aten::view(%x, %shape)      ->   %y = aten::reshape(%x, %shape)
//   %y = aten::swapaxes(%x, %a, %b)  ->   %y = aten::transpose(%x, %a, %b)
//
// Quantized convolutions return channels-last, which view may refuse. Where an in-place operator
// writes to the value, it stays a view. A swap of axes is one by another name, written to or not.
#include "graph/alias.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

bool isViewWithShape(const Node* node) {
  return node->kind() == aten::view && node->inputs().size() == 2 &&
         node->input(1)->type()->kind() == c10::TypeKind::ListType;
}

bool canonicalizeView(PassContext& context) {
  static const auto swaps = symbols({"aten::swapaxes", "aten::swapdims"});
  const auto graph = context.graph();
  const auto written = writtenValues(graph);
  return replaceNodes(*graph, [&](Node* node) {
    if (swaps.count(node->kind())) {
      return insertValue(node, aten::transpose, node->inputs(), node);
    }
    return isViewWithShape(node) && !written.count(node->output())
               ? insertValue(node, aten::reshape, node->inputs(), node)
               : nullptr;
  });
}

const RegisterPass canonicalize_view_pass{
    "canonicalize_view",
    "Turn view into reshape, which takes any memory layout, and swapaxes into transpose.", canonicalizeView,
    needs("inlined")};

} // namespace
} // namespace jit_passes
