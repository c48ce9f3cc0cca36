// Bring the spellings of clipping to two: relu and clamp.
//
//   aten::relu6(%x)                  ->  aten::clamp(%x, 0, 6)
//   aten::hardtanh(%x, %low, %high)  ->  aten::clamp(%x, %low, %high)
//   aten::clamp(%x, 0, None), aten::clamp_min(%x, 0)  ->  aten::relu(%x)
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

const auto relu6 = symbol("aten::relu6");
const auto hardtanh = symbol("aten::hardtanh");
const auto clamp_min = symbol("aten::clamp_min");

bool clipsBelowZeroOnly(const Node* node) {
  const bool no_maximum =
      node->kind() == clamp_min || (node->kind() == c10::aten::clamp && isNone(node->input(2)));
  // A bound of 0.0 would turn integers into floats, which relu does not.
  return no_maximum && node->input(1)->type() == c10::IntType::get() && constantNumber(node->input(1)) == 0.0;
}

Value* canonicalClamp(Node* node) {
  if (node->kind() == relu6) {
    const std::vector<Value*> operands{
        node->input(0), insertConstant(node, int64_t{0}), insertConstant(node, int64_t{6})};
    return insertValue(node, c10::aten::clamp, operands, node);
  }
  if (node->kind() == hardtanh) {
    return insertValue(node, c10::aten::clamp, node->inputs(), node);
  }
  return clipsBelowZeroOnly(node) ? insertValue(node, c10::aten::relu, {node->input(0)}, node) : nullptr;
}

bool canonicalizeClamp(PassContext& context) { return replaceNodes(*context.graph(), canonicalClamp); }

const RegisterPass canonicalize_clamp_pass{
    "canonicalize_clamp",
    "Turn relu6, hardtanh and clamp_min into relu and clamp.",
    canonicalizeClamp,
    {"inlined"}};

} // namespace
} // namespace jit_passes
