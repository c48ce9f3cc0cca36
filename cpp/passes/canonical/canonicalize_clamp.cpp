// Bring the spellings of clipping to two: relu and clamp.
//
//   aten::relu6(%x)                  ->  aten::clamp(%x, 0, 6)
//   aten::hardtanh(%x, %low, %high)  ->  aten::clamp(%x, %low, %high)
//   aten::clamp_min(%x, %low)        ->  aten::clamp(%x, %low, None)
//   aten::clamp_max(%x, %high)       ->  aten::clamp(%x, None, %high)
//   aten::clamp(%x, 0, None)         ->  aten::relu(%x)
//
// and bounds that are constant tensors of one number are that number.
//
// At a bound itself the derivative changes: clamp has 1 there, relu and hardtanh have 0.
#include <cmath>

#include "graph/alias.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

const auto relu6 = symbol("aten::relu6");
const auto hardtanh = symbol("aten::hardtanh");
const auto clamp_min = symbol("aten::clamp_min"), clamp_max = symbol("aten::clamp_max");

bool clipsBelowZeroOnly(const Node* node) {
  const bool only_low = node->kind() == clamp_min || (node->kind() == aten::clamp && isNone(node, "max"));
  // A bound of 0.0 would turn integers into floats, which relu does not.
  return only_low && inputOf(node, "min")->type() == c10::IntType::get() &&
         constantNumber(node, "min") == 0.0;
}

// The bound as a whole number, if it is one: hardtanh keeps the dtype of whole numbers, which others would make floats.
Value* inDtype(Node* node, Value* bound) {
  const auto number = constantNumber(bound);
  const bool whole = number && *number == std::floor(*number) && std::abs(*number) < 1e9;
  return whole ? insertConstant(node, static_cast<int64_t>(*number)) : bound;
}

// The number that a bound is, if it is a constant tensor; None where there is no bound.
std::optional<c10::IValue> boundOf(const Value* bound) {
  if (isNone(bound)) {
    return c10::IValue();
  }
  const auto tensor = constantTensor(bound);
  const bool is_number = tensor && tensor->dim() == 0 && tensor->scalar_type() == at::kFloat;
  return is_number ? std::optional<c10::IValue>(tensor->item<double>()) : std::nullopt;
}

// The derivative of relu is of its result, which then no operator may write; that of clamp is of its operand.
Value* canonicalClamp(Node* node, const std::unordered_set<const Value*>& written) {
  const auto clamped = [&](const std::pair<Value*, Value*>& bounds) { // in braces, made in this order
    return insertValue(node, aten::clamp, {inputOf(node, "self"), bounds.first, bounds.second}, node);
  };
  if (node->kind() == relu6) {
    return clamped({insertConstant(node, int64_t{0}), insertConstant(node, int64_t{6})});
  }
  if (node->kind() == hardtanh) {
    return clamped({inDtype(node, inputOf(node, "min_val")), inDtype(node, inputOf(node, "max_val"))});
  }
  if (clipsBelowZeroOnly(node) && !written.count(node->output())) {
    return insertValue(node, aten::relu, {inputOf(node, "self")}, node);
  }
  if (node->kind() == aten::clamp && (isTensor(inputOf(node, "min")) || isTensor(inputOf(node, "max")))) {
    const auto low = boundOf(inputOf(node, "min")), high = boundOf(inputOf(node, "max"));
    return low && high ? clamped({insertConstant(node, *low), insertConstant(node, *high)}) : nullptr;
  }
  const bool is_min = node->kind() == clamp_min, is_max = node->kind() == clamp_max;
  Value* bound = is_min ? inputOf(node, "min") : is_max ? inputOf(node, "max") : nullptr;
  if (bound == nullptr || isTensor(bound)) {
    return nullptr;
  }
  Value* none = insertConstant(node, c10::IValue());
  return clamped(is_min ? std::pair(bound, none) : std::pair(none, bound));
}

bool canonicalizeClamp(PassContext& context) {
  const auto written = writtenValues(context.graph());
  return replaceNodes(*context.graph(), [&](Node* node) { return canonicalClamp(node, written); });
}

const RegisterPass canonicalize_clamp_pass{
    "canonicalize_clamp", "Turn relu6, hardtanh, clamp_min and clamp_max into relu and clamp.",
    canonicalizeClamp, needs("inlined")};

} // namespace
} // namespace jit_passes
