// Give operators with several names one of them.
//
// View becomes reshape, which allows another memory layout than in the float model: quantized convolutions return
// channels-last, which view may refuse. A value that an in-place operator writes to stays a view. swapaxes and
// swapdims become transpose in any case.
//
// Clips become relu and clamp. Bounds that are constant tensors of one number become that number.
//
// The derivative differs at a bound: clamp has 1 there, relu and hardtanh have 0. The derivative of relu is computed
// from its result, so no operator may write to the result; the derivative of clamp is computed from its operand.
#include <cmath>

#include "rewriting/rewriter.h"

namespace jit_passes {
namespace {

using Bounds = std::unordered_map<std::string, Computed>;

// hardtanh keeps integer dtypes, while clamp with floating-point bounds gives floats.
Computed wholeIfEqual(const MatchView& match, const char* name) {
  const double bound = match.number(name).value();
  const bool whole = bound == std::floor(bound) && std::abs(bound) < 1e9;
  return {whole ? c10::IValue(static_cast<int64_t>(bound)) : c10::IValue(bound)};
}

// The number of a bound that is a constant tensor; None if there is no bound.
std::optional<c10::IValue> boundOf(const Value* bound) {
  if (isNone(bound)) {
    return c10::IValue();
  }
  const auto tensor = constantTensor(bound);
  const bool is_number = tensor && tensor->dim() == 0 && tensor->scalar_type() == at::kFloat;
  return is_number ? std::optional<c10::IValue>(tensor->item<double>()) : std::nullopt;
}

const RegisterRules canonicalize_synonyms_pass{
    "canonicalize_synonyms",
    "Turn view into reshape, swapaxes into transpose, and all clips into relu and clamp.",
    {{.pattern = "aten::swapaxes(%x, %a, %b)",
      .replacement = "aten::transpose(%x, %a, %b)",
      .same_memory = true},
     {.pattern = "aten::swapdims(%x, %a, %b)",
      .replacement = "aten::transpose(%x, %a, %b)",
      .same_memory = true},
     {.pattern = "%y = aten::view(%x, %shape : int[]) %y",
      .replacement = "aten::reshape(%x, %shape)",
      .check = [](const auto& match) { return onlyIf(!match.isWritten("y")); },
      .same_memory = true},
     {"aten::relu6(%x)", "aten::clamp(%x, 0, 6)"},
     {"aten::hardtanh(%x, %low, %high)", "aten::clamp(%x, %min, %max)",
      [](const auto& match) { return onlyIf(match.number("low") && match.number("high")); },
      [](const auto& match) {
        return Bounds{{"min", wholeIfEqual(match, "low")}, {"max", wholeIfEqual(match, "high")}};
      }},
     {"aten::hardtanh(%x, %low, %high)", "aten::clamp(%x, %low, %high)"},
     {"aten::clamp_min(%x, %low : Scalar)", "aten::clamp(%x, %low, None)"},
     {"aten::clamp_max(%x, %high : Scalar)", "aten::clamp(%x, None, %high)"},
     // A bound of 0.0 would turn integers into floats, which relu does not.
     {"%y = aten::clamp(%x, %low : int, None) %y", "aten::relu(%x)",
      [](const auto& match) { return onlyIf(match.number("low") == 0.0 && !match.isWritten("y")); }},
     {"aten::clamp(%x, %low, %high)", "aten::clamp(%x, %min, %max)",
      [](const auto& match) {
        Value *low = match.value("low"), *high = match.value("high");
        return onlyIf((isTensor(low) || isTensor(high)) && boundOf(low) && boundOf(high));
      },
      [](const auto& match) {
        return Bounds{{"min", {*boundOf(match.value("low"))}}, {"max", {*boundOf(match.value("high"))}}};
      }}}};

} // namespace
} // namespace jit_passes
