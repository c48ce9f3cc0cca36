#include "executor.h"

namespace jit_passes {
namespace {

struct Hook {
  std::atomic<bool> active{false};
  std::once_flag registered;
  GraphFunction function;
};

Hook& hookOf(Moment moment) {
  static auto* const hooks = new std::array<Hook, 2>(); // outlives the executor's last graph
  return (*hooks)[static_cast<size_t>(moment)];
}

} // namespace

void onGraph(Moment moment, GraphFunction function) {
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

} // namespace jit_passes
