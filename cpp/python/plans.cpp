// Plans of int8 regions.
#include "conversions.h"

#include "x86/builder.h"
#include "x86/kernels.h"
#include "x86/plan.h"

namespace jit_passes {
namespace {

using torch::jit::Module;

py::object buildPlan(const Module& region) {
  return toPython(c10::IValue(c10::make_intrusive<x86::Plan>(x86::build(region))));
}

// The levels that the processor has.
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
  static const py::exception<x86::RefusedOperator> refused(m, "RefusedOperator", PyExc_RuntimeError);
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const x86::RefusedOperator& error) {
      const py::object raised = py::handle(refused)(error.what(), error.name);
      PyErr_SetObject(refused.ptr(), raised.ptr());
    }
  });
  m.def("build_plan", &buildPlan, py::arg("region"));
  m.def("planned_kinds", &x86::plannedKinds);
  m.def("has_x86_kernels", [] { return x86::bestForm() >= x86::Form::AvxVnni; });
  m.def("x86_levels", &x86Levels);
  m.def("x86_level", [] { return x86::nameOf(x86::bestForm()); });
  m.def(
      "set_x86_level", [](const std::string& name) { x86::setBestForm(x86::formNamed(name)); },
      py::arg("name"));
}

} // namespace jit_passes
