// PyTorch's own clean-up passes, registered for pipelines.
#include "graph/alias.h"
#include "graph/module.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

bool removeDeadCode(PassContext& context) {
  const size_t before = nodesInOrder(*context.graph()).size();
  removeDeadNodes(context.graph());
  return nodesInOrder(*context.graph()).size() != before;
}

// Removes attributes that the graph does not read, so that files do not contain them.
bool removeUnusedAttributes(PassContext& context) {
  std::unordered_set<std::string> used;
  const Value* self = context.graph()->inputs().at(0);
  for (const auto& use : self->uses()) {
    if (!use.user->hasAttribute(attr::name)) {
      return false; // self is used as a whole
    }
    used.insert(use.user->s(attr::name));
  }
  used.insert("training");
  const auto self_object = context.module()._ivalue();
  const auto keep = [&](const c10::ivalue::Object& owner, const std::string& name) {
    return &owner != self_object.get() || used.count(name) > 0;
  };
  const size_t before = context.module().type()->numAttributes();
  context.module() =
      rebuildModule(context.module(), {{context.method(), context.graph()}}, keep, Values::Shared);
  return context.module().type()->numAttributes() != before;
}

const RegisterPass remove_dead_code_pass{
    "remove_dead_code", "Remove nodes on which no result depends.", removeDeadCode};
const RegisterPass remove_unused_attributes_pass{
    "remove_unused_attributes", "Remove attributes that the method does not read.", removeUnusedAttributes,
    needs("inlined")};

} // namespace
} // namespace jit_passes
