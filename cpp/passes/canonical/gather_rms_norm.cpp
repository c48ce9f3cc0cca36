// Replace a root-mean-square norm (Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467, equation 4) that a
// model writes as several operators by one, for targets that have it.
//
//   %h = aten::to(%x, float32, ...)                   one or none
//   %p = aten::pow(%h, 2)                             or aten::square(%h), aten::mul(%h, %h)
//   %v = aten::mean(%p, [-1], True, None)
//   %r = aten::rsqrt(aten::add(%v, eps, 1))
//   %n = aten::mul(%x, %r)                            of %x or %h; or a quotient by aten::sqrt
//   %y = aten::mul(%weight, aten::to(%n, float32, ...))
//     ->
//   %y = aten::rms_norm(%h, [channels], %weight, eps)
//
// The weight is a constant with one axis, whose size is the number of channels. The single operator rounds at other
// places, so this is no part of the canonical form.
#include "norm_rules.h"

namespace jit_passes {
namespace {

// The number in a constant; traces have a tensor without axes.
double numberOr0(const Value* value) {
  const auto tensor = constantTensor(value);
  return tensor ? (tensor->dim() == 0 ? tensor->to(at::kDouble).item<double>() : 0)
                : constantNumber(value).value_or(0);
}

std::optional<std::string> refusedNorm(const MatchView& match) {
  const auto weight = constantTensor(match.value("weight"));
  const bool scales =
      weight && weight->dim() == 1 && weight->scalar_type() == at::kFloat && weight->numel() > 0;
  const bool in_float = isNone(match.value("dtype")) || match.number("dtype") == double(at::kFloat);
  if (!scales || !in_float || !(numberOr0(match.value("eps")) > 0)) {
    return "";
  }
  const bool written = match.isWritten("x") || match.isWritten("y");
  return written
             ? std::optional("it is not written as one norm: something writes to its operand or its result")
             : std::nullopt;
}

std::unordered_map<std::string, Computed> optionsOfNorm(const MatchView& match) {
  const std::vector<int64_t> shape{constantTensor(match.value("weight"))->numel()};
  return {{"shape", {shape}}, {"number", {numberOr0(match.value("eps"))}}};
}

// The operand that is squared, and the operand that is divided.
const std::pair<const char*, const char*> operands_of_norm[] = {
    {"%x", "%x"}, {"aten::to(%x, 6, %a, %b, %c)", "%x"}, {"%x", "aten::to(%x, 6, %a, %b, %c)"}};

std::vector<RuleText> spellingsOfNorm() {
  std::vector<RuleText> rules;
  for (const auto& [squared, divided] : operands_of_norm) {
    const std::string x = squared;
    for (const auto& square :
         {"aten::pow(" + x + ", 2)", "aten::square(" + x + ")", "aten::mul(" + x + ", " + x + ")"}) {
      const auto sum = "aten::add(aten::mean(" + square + ", [-1], True, %dtype), %eps, 1)";
      for (const auto& norm :
           {"aten::mul(" + std::string(divided) + ", aten::rsqrt(" + sum + "))",
            "aten::div(" + std::string(divided) + ", aten::sqrt(" + sum + "))"}) {
        for (const auto& last : {norm, "aten::to(" + norm + ", 6, %d, %e, %f)"}) {
          rules.push_back(
              {"%y = aten::mul(%weight, " + last + ") %y",
               "aten::rms_norm(" + x + ", %shape, %weight, %number)", refusedNorm, optionsOfNorm});
        }
      }
    }
  }
  return rules;
}

} // namespace

const Rules& rulesOfNorms() {
  static const Rules rules = rulesOf("gather_rms_norm", spellingsOfNorm());
  return rules;
}

} // namespace jit_passes
