#include "rule_search.h"

#include "alias_check.h"
#include "graph/module.h"

namespace jit_passes {

ReadAttribute attributesOf(const PassContext& context) {
  if (!context.hasModule()) {
    return [](const Value*) { return std::nullopt; };
  }
  auto assigned = std::make_shared<std::optional<std::unordered_set<std::string>>>(); // rarely needed
  return [&context, assigned](const Value* value) {
    if (value->node()->kind() != prim::GetAttr) {
      return std::optional<c10::IValue>();
    }
    if (!*assigned) {
      *assigned = assignedAttributes(*context.graph());
    }
    return passesThrough(value, **assigned) ? std::nullopt : attributeOf(context.module(), value);
  };
}

MatchOptions matchOptions(const Rule& rule, const ReadAttribute& attribute) {
  return {attribute, rule.commutative, static_cast<bool>(rule.check)};
}

std::optional<std::string> refusalOf(
    const MatchView& view, std::optional<AliasClasses>& aliases, const Rule& rule,
    const std::optional<Placement>& placement) {
  if (!placement) {
    return "one of its operands is computed after one of its results is used";
  }
  if (rule.check) {
    if (auto reason = rule.check(view)) {
      return reason;
    }
  }
  return aliases && !rule.same_memory ? aliasRefusal(*aliases, rule, view.match, placement->point)
                                      : std::nullopt;
}

} // namespace jit_passes
