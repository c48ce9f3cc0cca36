// Plans of int8 regions.
#include "conversions.h"

#include "x86/builder.h"
#include "x86/plan.h"

namespace jit_passes {
namespace {

using torch::jit::Module;

py::object buildPlan(const Module& region) {
  return toPython(c10::IValue(c10::make_intrusive<x86::Plan>(x86::build(region))));
}

} // namespace

void bindPlans(py::module_& m) {
  m.def("build_plan", &buildPlan, py::arg("region"));
  m.def("planned_kinds", &x86::plannedKinds);
}

} // namespace jit_passes
