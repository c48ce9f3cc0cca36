#include "executor.h"

#include <torch/csrc/jit/passes/tensorexpr_fuser.h>

namespace jit_passes {
namespace {

struct Hook {
  std::atomic<bool> active{false};
  std::once_flag registered;
  GraphHook function;
};

Hook& hookOf(Moment moment) {
  static auto* const hooks = new std::array<Hook, 2>(); // outlives the executor's last graph
  return (*hooks)[static_cast<size_t>(moment)];
}

} // namespace

void onGraph(Moment moment, GraphHook function) {
  Hook& hook = hookOf(moment);
  std::call_once(hook.registered, [&] {
    hook.function = std::move(function);
    const auto visit = [&hook](std::shared_ptr<Graph>& graph) {
      if (hook.active) {
        if (auto changed = hook.function(graph)) {
          graph = std::move(changed);
        }
      }
    };
    if (moment == Moment::AfterAutograd) {
      torch::jit::registerPrePass(visit); // before fusion, and after differentiation
    } else {
      torch::jit::registerPostPass(visit);
    }
  });
}

void setActive(Moment moment, bool active) { hookOf(moment).active = active; }

Profile takeProfile(std::shared_ptr<Graph>& graph) {
  std::unordered_map<Value*, c10::TypePtr> before;
  forEachValue(graph->block(), [&](Value* value) { before[value] = value->type(); });
  torch::jit::RemoveProfileNodesAndSpecializeTypes(graph);
  Profile profile;
  forEachValue(graph->block(), [&](Value* value) {
    if (*before.at(value) != *value->type()) {
      profile[value->debugName()] = value->type();
      value->setType(before.at(value));
    }
  });
  return profile;
}

void putProfile(Graph& graph, const Profile& profile) {
  forEachValue(graph.block(), [&](Value* value) {
    const auto found = profile.find(value->debugName());
    if (found != profile.end() && *value->type() == *c10::TensorType::get()) {
      value->setType(found->second);
    }
  });
}

} // namespace jit_passes
