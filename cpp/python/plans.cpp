// Plans of int8 regions.
#include "conversions.h"

#include "x86/building/builder.h"
#include "x86/building/refusals.h"
#include "x86/building/units.h"
#include "x86/kernels/grouped.h"
#include "x86/kernels/kernels.h"
#include "x86/program/declaration.h"
#include "x86/running/plan.h"

namespace jit_passes {
namespace {

using torch::jit::Module;

py::object buildPlan(const Module& region) {
  return toPython(c10::IValue(c10::make_intrusive<x86::Plan>(x86::build(region))));
}

// By kind of operator: (whether it only moves codes, whether it computes in float32).
std::map<std::string, std::pair<bool, bool>> plannedKinds() {
  std::map<std::string, std::pair<bool, bool>> kinds;
  for (const auto& [kind, has] : x86::plannedKinds()) {
    kinds.emplace(kind, std::pair(has.moves_codes, has.in_floats));
  }
  return kinds;
}

// The instruction levels that the processor supports.
std::vector<std::string> x86Levels() {
  std::vector<std::string> levels;
  for (int i = 0; i < static_cast<int>(x86::Form::Count); ++i) {
    const auto form = static_cast<x86::Form>(i);
    if (x86::hasForm(form)) {
      levels.emplace_back(x86::nameOf(form));
    }
  }
  return levels;
}

} // namespace

void bindPlans(py::module_& m) {
  m.def("build_plan", &buildPlan, py::arg("region"));
  m.def("planned_kinds", &plannedKinds);
  m.def("count_plan_operators", &x86::countRegistrations);
  m.def("plan_refusals", &x86::planRefusals, py::arg("module"), py::arg("method"), py::arg("codes") = false);
  m.def("summed_kinds", &x86::summedKinds);
  m.def("parts_taken", &x86::partsTaken, py::arg("module"), py::arg("method"));
  m.def("most_axes", [] { return x86::kMostPlanAxes; });
  m.def("group_multiple", [] { return x86::GroupedShape::kInputs; });
  m.def("has_x86_kernels", [] { return x86::bestForm() >= x86::Form::AvxVnni; });
  m.def("x86_levels", &x86Levels);
  m.def("x86_level", [] { return x86::nameOf(x86::bestForm()); });
  m.def(
      "set_x86_level", [](const std::string& name) { x86::setBestForm(x86::formNamed(name)); },
      py::arg("name"));
}

} // namespace jit_passes
