// Write operators of several names by one of them.
//
// View becomes reshape, which allows results whose memory is laid out differently than in the float model. Quantized
// convolutions return channels-last, which view may refuse. Where an in-place operator writes to the value, it stays a
// view. A swap of axes is a transposition by another name, written to or not.
//
// Clips become relu and clamp. Bounds that are constant tensors of one number become that number.
//
// At a bound itself the derivative changes: clamp has 1 there, relu and hardtanh have 0. The derivative of relu is of its
// result, which then no operator may write; that of clamp is of its operand.
#include <cmath>

#include "rewriting/rewriter.h"

namespace jit_passes {
namespace {

using Bounds = std::unordered_map<std::string, Computed>;

// hardtanh keeps the dtype of whole numbers, which bounds in floating point would make floats.
Computed wholeIfEqual(const MatchView& match, const char* name) {
  const double bound = match.number(name).value();
  const bool whole = bound == std::floor(bound) && std::abs(bound) < 1e9;
  return {whole ? c10::IValue(static_cast<int64_t>(bound)) : c10::IValue(bound)};
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
