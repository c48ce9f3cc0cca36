// The Python face of the extension. Nothing outside of this folder includes Python.
#include <torch/version.h>

#include "conversions.h"

#include "core/module.h"
#include "core/observers.h"
#include "core/operators.h"
#include "passes/fbgemm.h"

namespace jit_passes {

namespace {

// Elements of one type make a list of that type.
c10::IValue toList(const py::list& list) {
  std::vector<c10::IValue> elements;
  for (const auto& element : list) {
    elements.push_back(toIValue(element));
  }
  const bool same = !elements.empty() && std::all_of(elements.begin(), elements.end(), [&](const auto& e) {
    return e.tagKind() == elements[0].tagKind();
  });
  const bool simple = same && !elements[0].isTuple() && !elements[0].isList();
  c10::impl::GenericList result(simple ? elements[0].type() : c10::TypePtr(c10::AnyType::get()));
  if (simple && elements[0].isTensor()) {
    result = c10::impl::GenericList(c10::TensorType::get());
  }
  for (auto& element : elements) {
    result.push_back(std::move(element));
  }
  return result;
}

} // namespace

c10::IValue toIValue(const py::handle& object) {
  if (object.is_none()) {
    return {};
  }
  if (py::isinstance<py::bool_>(object)) {
    return object.cast<bool>();
  }
  if (py::isinstance<py::int_>(object)) {
    return object.cast<int64_t>();
  }
  if (py::isinstance<py::float_>(object)) {
    return object.cast<double>();
  }
  if (py::isinstance<py::str>(object)) {
    return object.cast<std::string>();
  }
  if (THPVariable_Check(object.ptr())) {
    return THPVariable_Unpack(object.ptr());
  }
  if (py::isinstance<py::tuple>(object)) {
    std::vector<c10::IValue> elements;
    for (const auto& element : object.cast<py::tuple>()) {
      elements.push_back(toIValue(element));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (py::isinstance<py::list>(object)) {
    return toList(object.cast<py::list>());
  }
  throw py::type_error(
      "a value is None, a bool, number, string, tensor, or a tuple or list of these, not " +
      std::string(py::str(py::type::of(object))));
}

Options toOptions(const py::dict& dict) {
  Options options;
  for (const auto& [key, value] : dict) {
    options.emplace(key.cast<std::string>(), toIValue(value));
  }
  return options;
}

py::tuple toTuple(const NodeRecord& n) {
  return py::make_tuple(
      n.name, n.kind, n.module, n.module_type, n.source, n.block, n.moves_data, n.inputs, n.outputs,
      n.overload);
}

namespace {

py::object shapeOf(const ValueRecord& v) {
  if (!v.shape) {
    return py::none();
  }
  py::tuple sizes(v.shape->size());
  for (size_t i = 0; i < v.shape->size(); ++i) {
    sizes[i] = (*v.shape)[i] ? py::object(py::int_(*(*v.shape)[i])) : py::object(py::none());
  }
  return py::object(sizes);
}

} // namespace

py::tuple toTuple(const ValueRecord& v) {
  const bool readable = v.constant && !v.constant->isObject();
  return py::make_tuple(
      v.id, v.name, v.is_tensor, v.written, v.result, v.constant.has_value(),
      readable ? toPython(*v.constant) : py::none(), shapeOf(v), v.dtype);
}

namespace {

// (name, spec, range, histogram or None) for each observer, in program order.
py::list observations(const Module& module, const std::string& method) {
  // A module looks for an attribute by comparing all names.
  std::unordered_map<std::string, c10::IValue> attributes;
  for (size_t slot = 0; slot < module.type()->numAttributes(); ++slot) {
    attributes.emplace(module.type()->getAttributeName(slot), module._ivalue()->getSlot(slot));
  }
  py::list result;
  for (Node* node : observersOf(*module.get_method(method).graph())) {
    const auto buffer = [&](size_t operand) -> py::object {
      const Node* source = node->input(operand)->node();
      return source->kind() == c10::prim::GetAttr ? toPython(attributes.at(source->s(c10::attr::name)))
                                                  : py::object(py::none());
    };
    const auto text = [&](size_t from_end) {
      return torch::jit::toIValue(node->input(node->inputs().size() - from_end))->toStringRef();
    };
    result.append(
        py::make_tuple(std::string(node->kind().toUnqualString()), text(2), text(1), buffer(1), buffer(2)));
  }
  return result;
}

// (operator, operands by name) of each place that trains, in program order. Operands are constants and
// attributes; others are None.
py::list trained(const Module& module, const std::string& method) {
  py::list result;
  for (const Node* node : trainedOf(*module.get_method(method).graph())) {
    py::dict operands;
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      const Value* value = node->input(i);
      const auto known = isConstant(value) ? torch::jit::toIValue(value) : attributeOf(module, value);
      const bool readable = known && !known->isObject();
      operands[py::str(node->schema().arguments()[i].name())] = readable ? toPython(*known) : py::none();
    }
    result.append(py::make_tuple(std::string(node->kind().toUnqualString()), operands));
  }
  return result;
}

// The paths of the parameters that are trained at these places, in program order.
std::vector<std::string> trainedParameters(const Module& module, const std::string& method) {
  std::vector<std::string> paths;
  for (const Node* node : trainedOf(*module.get_method(method).graph())) {
    for (const char* name : {"scale", "offset", "log2_threshold"}) {
      const Value* value = operandOf(node, name);
      if (value != nullptr && value->node()->kind() == c10::prim::GetAttr) {
        paths.push_back(attributePath(value));
      }
    }
  }
  return paths;
}

bool isObserverBuffer(const std::string& name) { return name.rfind("observer_", 0) == 0; }

// Puts back everything but the observers' buffers as it was in the copy.
void restoreState(const c10::intrusive_ptr<c10::ivalue::Object>& object, const c10::ivalue::Object& copy) {
  const auto type = object->type();
  for (size_t slot = 0; slot < type->numAttributes(); ++slot) {
    const auto value = object->getSlot(slot);
    if (value.isModule()) {
      restoreState(value.toObject(), copy.getSlot(slot).toObjectRef());
    } else if (!isObserverBuffer(type->getAttributeName(slot)) && !value.isObject()) {
      object->setSlot(slot, copy.getSlot(slot));
    }
  }
}

// By qualified name, the fields of `OperatorTraits` in their order.
py::dict operatorRows() {
  py::dict rows;
  for (const auto& [name, t] : operatorTable()) {
    const auto weighted = t.weighted
                              ? py::object(py::make_tuple(t.weighted->spatial_dims, t.weighted->transposed))
                              : py::object(py::none());
    const auto clip = t.clip ? py::object(py::make_tuple(t.clip->low, t.clip->high)) : py::object(py::none());
    rows[py::str(name)] = py::make_tuple(
        weighted, t.holds_weights, t.product, t.elementwise, clip, t.within, t.nonnegative_if, t.moves_data,
        t.dropout, t.asks_for_shape, t.gives);
  }
  return rows;
}

// The names of the arguments of an operator's overload; None if there is no such operator.
std::optional<std::vector<std::string>> operatorArguments(
    const std::string& kind, const std::string& overload) {
  for (const auto& op : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(kind))) {
    if (op->schema().overload_name() == overload) {
      std::vector<std::string> names;
      for (const auto& argument : op->schema().arguments()) {
        names.push_back(argument.name());
      }
      return names;
    }
  }
  return std::nullopt;
}

void setStringAttribute(Module module, const std::string& name, const std::string& text) {
  if (module.hasattr(name)) {
    module.setattr(name, text);
  } else {
    module.register_attribute(name, c10::StringType::get(), text);
  }
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "Passes over TorchScript graphs.";
  m.attr("torch_version") = TORCH_VERSION; // compiled against
  bindPasses(m);
  bindRewriting(m);
  m.def("node_kinds", [](const Module& module, const std::string& method) {
    py::dict kinds;
    for (const auto& [node, name] : nodeNames(*module.get_method(method).graph())) {
      kinds[py::str(name)] = node->kind().toQualString();
    }
    return kinds;
  });
  m.def("clone", [](const Module& module) { return cloneModule(module); });
  m.def("clone", [](const Module& module, const std::string& method) { return cloneModule(module, method); });
  m.def("deepcopy", [](const Module& module) { return module.deepcopy(); });
  m.def("restore_state", [](const Module& module, const Module& copy) {
    restoreState(module._ivalue(), *copy._ivalue());
  });
  m.def(
      "fast_on_fbgemm",
      [](const std::vector<int64_t>& weight, const std::vector<int64_t>& stride,
         const std::vector<int64_t>& padding, const std::vector<int64_t>& dilation,
         int64_t groups) { return fastOnFbgemm(weight, stride, padding, dilation, groups); });
  m.def("operator_table", &operatorRows);
  m.def("operator_arguments", &operatorArguments);
  m.def("observations", &observations);
  m.def("trained", &trained);
  m.def("trained_parameters", &trainedParameters);
  m.def("set_string_attribute", &setStringAttribute);
}

} // namespace jit_passes
