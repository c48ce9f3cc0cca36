// Values between Python and TorchScript.
#pragma once

#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "graph/registry.h"
#include "view/snapshot.h"

namespace jit_passes {

namespace py = pybind11;

c10::IValue toIValue(const py::handle& object);
inline py::object toPython(const c10::IValue& value) { return torch::jit::toPyObject(value); }

Options toOptions(const py::dict& dict);

py::tuple toTuple(const NodeRecord& node);
py::tuple toTuple(const ValueRecord& value);

using GraphPointer = std::shared_ptr<torch::jit::Graph>;

// The context of a method of a module, or of a graph alone.
inline PassContext contextOf(const py::object& subject, const std::string& method, const Options& options) {
  return py::isinstance<torch::jit::Module>(subject)
             ? PassContext(subject.cast<torch::jit::Module>(), method, options)
             : PassContext(subject.cast<GraphPointer>(), options);
}

// A Python function that C++ may copy and drop without holding the interpreter's lock.
class Function {
 public:
  explicit Function(py::function function)
      : function_(new py::function(std::move(function)), [](py::function* held) {
          if (Py_IsInitialized()) {
            const py::gil_scoped_acquire lock;
            delete held;
          }
        }) {}

  template <typename... Arguments>
  py::object operator()(Arguments&&... arguments) const {
    return (*function_)(std::forward<Arguments>(arguments)...);
  }

 private:
  std::shared_ptr<py::function> function_;
};

void bindPasses(py::module_& m);
void bindRewriting(py::module_& m);
void bindPlans(py::module_& m);

} // namespace jit_passes
