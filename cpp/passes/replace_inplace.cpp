// Give in-place operators their functional form wherever nobody can tell the difference.
//
//   %y = aten::relu_(%x)   ->   %y = aten::relu(%x)     when no other name of %x is read later
//
// PyTorch's alias analysis decides; what it cannot prove stays in place, and later passes leave
// those values in float.
//
// It takes the result of dropout for a tensor of its own. In eval mode it is the operand, so what is
// written to on either side of a dropout that may be off stays in place too.
#include "core/operators.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool mayBeOff(const Node* node) { return isDropout(node) && constantNumber(node->input(2)) != 1.0; }

// The value that the memory comes from: behind views, writes and dropout that may be off.
const Value* sourceOf(const Value* value) {
  const auto is_alias = [](const Node* node) {
    const auto* schema = node->maybeSchema();
    return schema != nullptr && !schema->returns().empty() && schema->returns()[0].alias_info() != nullptr;
  };
  while (!value->node()->inputs().empty() && (mayBeOff(value->node()) || is_alias(value->node()))) {
    value = value->node()->input(0);
  }
  return value;
}

bool replaceInplace(PassContext& context) {
  const auto graph = context.graph();
  std::unordered_set<const Value*> dropped;
  forEachNode(*graph, [&](const Node* node) {
    if (mayBeOff(node)) {
      dropped.insert(sourceOf(node->input(0)));
    }
  });
  return torch::jit::RemoveTensorMutation(graph, [&](const Node* node) {
    return node->inputs().empty() || !dropped.count(sourceOf(node->input(0)));
  });
}

const RegisterPass registration{
    "replace_inplace",
    "Turn in-place operators into functional ones where aliasing allows it.",
    replaceInplace,
    {"inlined"}};

} // namespace
} // namespace jit_passes
