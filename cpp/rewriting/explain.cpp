#include "alias_check.h"
#include "graph/names.h"
#include "rewriter.h"
#include "rule_search.h"

namespace jit_passes {
namespace {

// Tells of one node whether the pattern matches with it as the last node. A match has the name of its rewrite.
Explanation explainAt(
    PassContext& context, const Rule& rule, Node* node, const ReadAttribute& attribute,
    std::optional<AliasClasses>& aliases, const NodeNames& names) {
  NearMiss miss;
  const Node* named = node;
  bool matches = false;
  WrittenValues written(context);
  const auto accept = [&](const Match& match) {
    const MatchView view{match, rule.pattern, context, attribute, written};
    const auto refused = refusalOf(view, aliases, rule, placementOf(match, rule.pattern));
    if (!matches || !refused) {
      named = match.principal(rule.pattern);
      miss = {
          match.nodes.size(),
          refused && refused->empty() ? "the rule's check said no" : refused.value_or("")};
    }
    matches = true;
    return !refused;
  };
  auto options = matchOptions(rule, attribute);
  matchAt(rule.pattern, node, options, accept, &miss);
  if (!matches && !options.commutative) {
    options.commutative = true;
    const auto any = [](const Match&) { return true; };
    if (matchAt(rule.pattern, node, options, any)) {
      miss.reason += "; with operands in the other order it matches: leave out commutative=False";
    }
  }
  const auto found = names.find(named);
  return {found == names.end() ? "" : found->second, sourceLine(named), miss.matched, miss.reason};
}

} // namespace

std::vector<Explanation> explain(PassContext& context, const Rule& rule) {
  const auto graph = context.graph();
  const auto names = nodeNames(*graph);
  const auto attribute = attributesOf(context);
  auto aliases = aliasesOf(context, {&rule});
  std::vector<Explanation> result;
  forEachNode(*graph, [&](Node* node) {
    if (!rule.pattern.mayAnchorAt(node->kind())) {
      return;
    }
    result.push_back(explainAt(context, rule, node, attribute, aliases, names));
  });
  std::stable_sort(result.begin(), result.end(), [](const Explanation& a, const Explanation& b) {
    return std::pair(a.matched, a.reason.empty()) > std::pair(b.matched, b.reason.empty());
  });
  return result;
}

} // namespace jit_passes
