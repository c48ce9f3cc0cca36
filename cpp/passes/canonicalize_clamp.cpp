// Bring the spellings of clipping to two: relu and clamp.
//
//   aten::relu6(%x)                  ->  aten::clamp(%x, 0, 6)
//   aten::hardtanh(%x, %low, %high)  ->  aten::clamp(%x, %low, %high)
//   aten::clamp(%x, 0, None), aten::clamp_min(%x, 0)  ->  aten::relu(%x)
//
// At a bound itself the derivative changes: clamp has 1 there, relu and hardtanh have 0.
#include "core/alias.h"
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

const auto relu6 = symbol("aten::relu6");
const auto hardtanh = symbol("aten::hardtanh");
const auto clamp_min = symbol("aten::clamp_min");

bool clipsBelowZeroOnly(const Node* node) {
  const bool no_maximum =
      node->kind() == clamp_min || (node->kind() == aten::clamp && isNone(node->input(2)));
  // A bound of 0.0 would turn integers into floats, which relu does not.
  return no_maximum && node->input(1)->type() == c10::IntType::get() && constantNumber(node->input(1)) == 0.0;
}

// The derivative of relu is of its result, which then no operator may write; that of clamp is of its operand.
Value* canonicalClamp(Node* node, const std::unordered_set<const Value*>& written) {
  if (node->kind() == relu6) {
    const std::vector<Value*> operands{
        node->input(0), insertConstant(node, int64_t{0}), insertConstant(node, int64_t{6})};
    return insertValue(node, aten::clamp, operands, node);
  }
  if (node->kind() == hardtanh) {
    return insertValue(node, aten::clamp, node->inputs(), node);
  }
  const bool is_relu = clipsBelowZeroOnly(node) && !written.count(node->output());
  return is_relu ? insertValue(node, aten::relu, {node->input(0)}, node) : nullptr;
}

bool canonicalizeClamp(PassContext& context) {
  const auto written = writtenValues(context.graph());
  return replaceNodes(*context.graph(), [&](Node* node) { return canonicalClamp(node, written); });
}

const RegisterPass canonicalize_clamp_pass{
    "canonicalize_clamp", "Turn relu6, hardtanh and clamp_min into relu and clamp.", canonicalizeClamp,
    needs("inlined")};

} // namespace
} // namespace jit_passes
