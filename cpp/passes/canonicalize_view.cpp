// Allow results whose memory is laid out differently than in the float model.
//
//   %y = aten::view(%x, %shape)   ->   %y = aten::reshape(%x, %shape)
//
// Quantized convolutions return channels-last, which view may refuse. Where an in-place operator
// writes to the value, it stays a view.
#include "core/alias.h"
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool isViewWithShape(const Node* node) {
  return node->kind() == c10::aten::view && node->inputs().size() == 2 &&
         node->input(1)->type()->kind() == c10::TypeKind::ListType;
}

bool canonicalizeView(PassContext& context) {
  const auto graph = context.graph();
  const auto written = writtenValues(graph);
  return replaceNodes(*graph, [&](Node* node) {
    return isViewWithShape(node) && !written.count(node->output())
               ? insertValue(node, c10::aten::reshape, node->inputs(), node)
               : nullptr;
  });
}

const RegisterPass canonicalize_view_pass{
    "canonicalize_view",
    "Turn view into reshape, which takes any memory layout.",
    canonicalizeView,
    {"inlined"}};

} // namespace
} // namespace jit_passes
