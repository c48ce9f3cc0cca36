#include "casts.h"

namespace jit_passes {
namespace {

// Whether the node asks for something by that operand, but not for what the graph says that the operand is.
bool asksForOther(const Node* node, std::string_view name, const c10::IValue& wanted) {
  const Value* operand = operandOf(node, name);
  return operand != nullptr && !isNone(operand) && constantOf(operand) != wanted;
}

} // namespace

bool isToFloat(const Node* node, const std::string& device) {
  const bool casts = node->kind() == aten::to && node->maybeSchema() != nullptr;
  const Value* dtype = casts ? operandOf(node, "dtype") : nullptr;
  if (dtype == nullptr || constantNumber(dtype) != static_cast<int64_t>(at::kFloat)) {
    return false;
  }
  // A constant is never equal to None.
  const auto own = device.empty() ? c10::IValue() : c10::IValue(c10::Device(device));
  return !asksForOther(node, "device", own) && !asksForOther(node, "pin_memory", false) &&
         !asksForOther(node, "layout", static_cast<int64_t>(at::kStrided));
}

bool keepsFloat(const Node* node, const std::string& device) {
  return isToFloat(node, device) && !asksForOther(node, "memory_format", {}) &&
         operandOf(node, "copy") != nullptr && constantNumber(node, "copy") == 0.0;
}

} // namespace jit_passes
