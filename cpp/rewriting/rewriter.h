// Applying rules until none matches.
#pragma once

#include "rule.h"

namespace jit_passes JIT_PASSES_API {

using Rules = std::vector<std::shared_ptr<Rule>>;

struct Rewrite {
  std::string rule;
  std::string name;    // stable name of the principal node
  std::string source;  // its line
  std::string refused; // why nothing was rewritten; "" when it was
};

// Applies the rules, nested blocks included, until none matches: in program order, and earlier rules first. The
// result of a rewrite can be matched again; if that does not end, an error names the rules. A match is refused if
// its check says so, or if a write to memory makes the rewrite wrong.
std::vector<Rewrite> rewrite(PassContext& context, const Rules& rules);

// A rule as text.
struct RuleText {
  std::string pattern, replacement;
  MatchCheck check = nullptr;
  MatchCompute compute = nullptr;
  Alternatives alternatives = {};
  bool same_memory = false;
};

Rules rulesOf(const std::string& name, const std::vector<RuleText>& texts);

// Rules as a registered pass:
//
//   const RegisterRules use_hardswish_pass{
//       "use_hardswish", "Turn x * sigmoid(x) into hardswish.",
//       {{"aten::mul(%x, aten::sigmoid(%x))", "aten::hardswish(%x)"}}};
struct RegisterRules {
  RegisterRules(
      std::string name, std::string summary, std::vector<RuleText> rules,
      std::vector<std::string> requires_ = {"inlined"});
};

// The rules as a pass. The pass remarks on refused matches, unless another rule has rewritten the operator.
PassFunction passOf(const Rules& rules);

struct Explanation {
  std::string name;
  std::string source;
  size_t matched; // nodes of the pattern that fit
  std::string reason;
};

// For each operator of the kind that the pattern ends in: why the pattern does not match there. The nearest misses
// come first.
std::vector<Explanation> explain(PassContext& context, const Rule& rule);

} // namespace jit_passes JIT_PASSES_API
