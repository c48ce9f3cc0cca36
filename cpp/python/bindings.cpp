// The Python face of the extension. Nothing outside of this folder includes Python.
#include <torch/version.h>

#include "conversions.h"

#include "graph/callers_error.h"
#include "graph/calls.h"
#include "graph/dialect.h"
#include "graph/kept_modules.h"
#include "graph/method_places.h"
#include "graph/module.h"
#include "graph/names.h"
#include "graph/operators.h"
#include "graph/places.h"
#include "passes/lowering/fbgemm.h"
#include "passes/methods/methods.h"
#include "view/snapshot.h"

namespace jit_passes {

namespace {

// Converts values of Python. Equal keys of dicts become one string, since the dicts of many places have equal keys.
class PythonValues {
 public:
  c10::IValue read(const py::handle& object) {
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
      return c10::ivalue::Tuple::create(readAll(py::reinterpret_borrow<py::tuple>(object)));
    }
    if (py::isinstance<py::list>(object)) {
      return readList(py::reinterpret_borrow<py::list>(object));
    }
    if (py::isinstance<py::dict>(object)) {
      return readDict(py::reinterpret_borrow<py::dict>(object));
    }
    throw py::type_error(
        "a value is None, a bool, number, string, tensor, or a tuple, list or dict of these, not " +
        std::string(py::str(py::type::of(object))));
  }

 private:
  template <typename Sequence>
  std::vector<c10::IValue> readAll(const Sequence& objects) {
    std::vector<c10::IValue> elements;
    elements.reserve(objects.size());
    for (const auto& object : objects) {
      elements.push_back(read(object));
    }
    return elements;
  }

  // Elements of equal type make a list of that type.
  c10::IValue readList(const py::list& list) {
    auto elements = readAll(list);
    const bool same = !elements.empty() && std::ranges::all_of(elements, [&](const auto& e) {
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

  // Keys are all strings or all whole numbers.
  c10::IValue readDict(const py::dict& dict) {
    const bool numbered = !dict.empty() && py::isinstance<py::int_>(dict.begin()->first);
    const auto keys = numbered ? c10::TypePtr(c10::IntType::get()) : c10::TypePtr(c10::StringType::get());
    c10::impl::GenericDict result(keys, c10::AnyType::get());
    result.reserve(dict.size());
    for (const auto& [key, value] : dict) {
      result.insert(numbered ? c10::IValue(key.cast<int64_t>()) : readKey(key), read(value));
    }
    return result;
  }

  // By address: equal names in Python code are one object, which the dicts keep alive during the conversion.
  c10::IValue readKey(const py::handle& key) {
    auto& known = keys_[key.ptr()];
    if (known.isNone()) {
      known = key.cast<std::string>();
    }
    return known;
  }

  std::unordered_map<const PyObject*, c10::IValue> keys_;
};

} // namespace

c10::IValue toIValue(const py::handle& object) { return PythonValues().read(object); }

Options toOptions(const py::dict& dict) {
  PythonValues reader;
  Options options;
  for (const auto& [key, value] : dict) {
    options.emplace(key.cast<std::string>(), reader.read(value));
  }
  return options;
}

py::tuple toTuple(const NodeRecord& n) {
  return py::make_tuple(
      n.name, n.kind, n.module, n.module_type, n.source, n.block, n.moves_data, n.inputs, n.outputs,
      n.overload, py::tuple(py::cast(n.carried))); // an empty tuple takes no memory
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
      readable ? toPython(*v.constant) : py::none(), shapeOf(v), v.dtype, v.from_sizes);
}

namespace {

// (index of the node, operator, operands by name) for each place, in program order. Operands that are constants or
// attributes, also through an edge, are given; others are None.
py::list places(const Module& module, const std::string& method) {
  // A table, since a module searches an attribute among all its names.
  std::unordered_map<std::string, c10::IValue> own;
  for (size_t slot = 0; slot < module.type()->numAttributes(); ++slot) {
    own.emplace(module.type()->getAttributeName(slot), module._ivalue()->getSlot(slot));
  }
  const auto known = [&](const Value* value) -> std::optional<c10::IValue> {
    if (value->node()->kind() == edge) {
      value = value->node()->input();
    }
    if (isConstant(value)) {
      return constantOf(value);
    }
    const Node* node = value->node();
    const bool of_self = node->kind() == prim::GetAttr && node->input()->node()->kind() == prim::Param;
    return of_self ? std::optional(own.at(node->s(attr::name))) : attributeOf(module, value);
  };
  py::list result;
  const auto nodes = nodesInOrder(*module.get_method(method).graph());
  for (size_t index = 0; index < nodes.size(); ++index) {
    if (!isPlace(nodes[index])) {
      continue;
    }
    py::dict operands;
    for (size_t i = 0; i < nodes[index]->inputs().size(); ++i) {
      const auto value = known(nodes[index]->input(i));
      const bool readable = value && !value->isObject();
      operands[py::str(nodes[index]->schema().arguments()[i].name())] =
          readable ? toPython(*value) : py::none();
    }
    result.append(py::make_tuple(index, nodes[index]->kind().toQualString(), operands));
  }
  return result;
}

// The path of the first parameter or buffer on the meta device, which has no data; nothing if there is none.
std::optional<std::string> metaTensor(const Module& module) {
  const auto first = [](const auto& tensors) -> std::optional<std::string> {
    for (const auto& [name, tensor] : tensors) {
      if (tensor.is_meta()) {
        return name;
      }
    }
    return std::nullopt;
  };
  const auto parameter = first(module.named_parameters());
  return parameter ? parameter : first(module.named_buffers());
}

// The fields of OperatorTraits in their order, by the qualified name of the operator.
py::dict operatorRows() {
  constexpr const char* kRecurrences[] = {"", "plain", "gated", "cell"};
  py::dict rows;
  for (const auto& [name, t] : operatorTable()) {
    const auto weighted = t.weighted
                              ? py::object(py::make_tuple(t.weighted->spatial_dims, t.weighted->transposed))
                              : py::object(py::none());
    const char* recurrence = kRecurrences[static_cast<size_t>(t.recurrent)];
    const auto clip = t.clip ? py::object(py::make_tuple(t.clip->low, t.clip->high)) : py::object(py::none());
    rows[py::str(name)] = py::make_tuple(
        weighted, t.holds_weights, t.product, t.elementwise, clip, t.within, t.nonnegative_if, t.moves_data,
        t.dropout, t.asks_for_shape, t.tells_layout, t.gives, t.commutes, recurrence);
  }
  return rows;
}

// The names of the arguments of an operator's overload; None if there is no such operator.
std::optional<std::vector<std::string>> operatorArguments(
    const std::string& kind, const std::string& overload) {
  for (const auto& op : torch::jit::getAllOperatorsFor(symbol(kind))) {
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

// Raises an error of the caller, which PyTorch has passed on from a running model, as the Python class that it
// names.
void translateCallersErrors() {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const torch::jit::JITException& error) {
      if (error.getPythonClassName() != CallersError::kClass) {
        throw;
      }
      const auto type = py::module_::import("jit_passes.errors").attr("ArgumentError");
      PyErr_SetString(type.ptr(), error.getOriginalMsg().value_or(error.what()).c_str());
    }
  });
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "Passes over TorchScript graphs.";
  translateCallersErrors();
  m.attr("torch_version") = TORCH_VERSION; // the version that this was compiled with
  bindPasses(m);
  bindRewriting(m);
  bindPlans(m);
  m.def("names_by_kind", [](const Module& module, const std::string& method) {
    const auto graph = inlinedGraph(module, method);
    const auto names = nodeNames(*graph);
    std::map<std::string, std::vector<std::string>> found; // in program order
    forEachNode(*graph, [&](Node* node) {
      if (const auto name = names.find(node); name != names.end()) {
        found[node->kind().toQualString()].push_back(name->second);
      }
    });
    return found;
  });
  m.def("parts", &reportsOfParts);
  m.def("inline_forks", [](const Module& module, const std::string& method) {
    return inlineForks(*module.get_method(method).graph());
  });
  m.def("clone", [](const Module& module) { return cloneModule(module); });
  m.def("clone", [](const Module& module, const std::string& method) { return cloneModule(module, method); });
  m.def("join_methods", &joinMethods);
  m.def("common_state", [](const Module& module, const std::unordered_set<std::string>& quantized) {
    const auto state = commonState(module, quantized);
    std::vector<std::string> paths;
    for (const auto& [attribute, path] : state.attributes) {
      paths.push_back(path);
    }
    std::ranges::sort(paths);
    return std::pair(paths, state.opaque);
  });
  m.def("deepcopy", [](const Module& module) { return module.deepcopy(); });
  m.def("restore_state", [](const Module& module, const Module& copy, const std::string& method) {
    const auto paths = statePaths(module, method);
    restoreState(module, copy, {paths.begin(), paths.end()});
  });
  m.def(
      "fast_on_fbgemm",
      [](const std::vector<int64_t>& weight, const std::vector<int64_t>& stride,
         const std::vector<int64_t>& padding, const std::vector<int64_t>& dilation,
         int64_t groups) { return fastOnFbgemm(weight, stride, padding, dilation, groups); });
  m.def("operator_table", &operatorRows);
  m.def("operator_arguments", &operatorArguments);
  m.def("meta_tensor", &metaTensor, py::arg("module"));
  m.def("places", &places);
  m.def("place_ids", &placeIds);
  m.def("restore_places", &restorePlaces);
  m.def("quantized_values", [](const Module& module, const std::string& method) {
    std::vector<std::tuple<int64_t, std::string, std::string>> rows;
    for (const auto& value : quantizedValues(*module.get_method(method).graph())) {
      rows.emplace_back(value.place, value.name, value.reader);
    }
    return rows;
  });
  m.def("copy_constants", [](const Module& module, const std::string& method) {
    copyConstants(*module.get_method(method).graph());
  });
  m.def("keep_modules", [](Module module, const std::string& method) { keepModules(module, method); });
  m.def("state_paths", &statePaths);
  m.def("set_string_attribute", &setStringAttribute);
}

} // namespace jit_passes
