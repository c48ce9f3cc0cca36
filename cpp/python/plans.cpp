// Plans of int8 regions.
#include "conversions.h"

#include "core/snapshot.h"
#include "x86/builder.h"
#include "x86/plan.h"

namespace jit_passes {
namespace {

using torch::jit::Module;

py::object buildPlan(const Module& region) {
  return toPython(c10::IValue(c10::make_intrusive<x86::Plan>(x86::build(region))));
}

// The nodes of each operator of a plan, by their number in program order, and why other nodes are none.
py::tuple planUnits(const Module& module, const std::string& method) {
  const Options no_options;
  const PassContext context(module, method, no_options);
  const auto found = x86::findPlannable(context);
  const auto nodes = nodesInOrder(*context.graph());
  std::unordered_map<const Node*, size_t> numbers;
  for (size_t i = 0; i < nodes.size(); ++i) {
    numbers.emplace(nodes[i], i);
  }
  std::vector<std::vector<size_t>> units;
  for (const auto& unit : found.units) {
    auto& own = units.emplace_back();
    for (const Node* node : unit) {
      own.push_back(numbers.at(node));
    }
    std::sort(own.begin(), own.end());
  }
  std::map<size_t, std::string> refused;
  for (const auto& [node, reason] : found.refused) {
    refused.emplace(numbers.at(node), reason);
  }
  return py::make_tuple(units, refused);
}

} // namespace

void bindPlans(py::module_& m) {
  m.def("build_plan", &buildPlan, py::arg("region"));
  m.def("plan_units", &planUnits, py::arg("module"), py::arg("method"));
}

} // namespace jit_passes
