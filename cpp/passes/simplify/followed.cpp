#include "followed.h"

namespace jit_passes {

bool onlyReads(const Node* node, size_t input) {
  const auto* schema = node->maybeSchema();
  // Two literals of equal content are two objects.
  if (schema == nullptr || input >= schema->arguments().size() || node->kind() == aten::__is__ ||
      node->kind() == aten::__isnot__) {
    return false;
  }
  const auto* alias = schema->arguments()[input].alias_info();
  const auto returned = [&](const c10::Argument& result) {
    return result.alias_info() != nullptr && std::ranges::any_of(alias->beforeSets(), [&](const auto& set) {
             return result.alias_info()->beforeSets().count(set) > 0;
           });
  };
  return alias == nullptr || (!alias->isWrite() && !alias->isWildcardBefore() && !alias->isWildcardAfter() &&
                              std::ranges::none_of(schema->returns(), returned));
}

} // namespace jit_passes
