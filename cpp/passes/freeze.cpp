// Make the module a graph of one method: calls inlined, parameters and attributes that nothing
// assigns turned into constants, branches on them resolved. Works on a clone.
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool freeze(PassContext& context) {
  // What the method assigns stays an attribute; it is copied, so that running the result does not
  // change the caller's.
  context.module = torch::jit::freeze_module(context.module, {context.method}).deepcopy();
  for (const auto& method : context.module.get_methods()) {
    if (method.name() != context.method) {
      context.module.type()->unsafeRemoveMethod(method.name());
    }
  }
  return true;
}

std::optional<std::string> checkInlined(const PassContext& context) {
  std::optional<std::string> problem;
  forEachNode(*context.graph(), [&](Node* node) {
    if (node->kind() == c10::prim::CallMethod || node->kind() == c10::prim::CallFunction) {
      problem = "a call is left: " + describe(node);
    }
  });
  return problem;
}

const RegisterInvariant inlined{"inlined", "No calls of methods or functions.", checkInlined};
const RegisterPass registration{
    "freeze", "Inline everything into one graph with constant parameters.", freeze, {}, {"inlined"}};

} // namespace
} // namespace jit_passes
