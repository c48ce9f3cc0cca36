// The Python face of the extension: passes, graph snapshots, rules. Nothing else includes Python.
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/extension.h>

#include "core/lint.h"
#include "core/module.h"
#include "core/observers.h"
#include "core/operators.h"
#include "core/registry.h"
#include "core/rewriter.h"
#include "core/snapshot.h"

namespace py = pybind11;

namespace jit_passes {
namespace {

c10::IValue toOption(const py::handle& object) {
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
      elements.push_back(toOption(element));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (py::isinstance<py::list>(object)) {
    c10::impl::GenericList elements(c10::AnyType::get());
    for (const auto& element : object.cast<py::list>()) {
      elements.push_back(toOption(element));
    }
    return elements;
  }
  throw py::type_error("a pass option is a number, string, tensor, tuple or list");
}

Options toOptions(const py::dict& dict) {
  Options options;
  for (const auto& [key, value] : dict) {
    options.emplace(key.cast<std::string>(), toOption(value));
  }
  return options;
}

template <typename Info>
const Info& find(const std::map<std::string, Info>& table, const std::string& name, const char* what) {
  const auto found = table.find(name);
  if (found == table.end()) {
    throw py::key_error(std::string("there is no ") + what + " '" + name + "'");
  }
  return found->second;
}

py::tuple runPass(
    const std::string& name, const Module& module, const std::string& method, const py::dict& dict) {
  const Options options = toOptions(dict);
  PassContext context{module, method, options};
  const bool changed = find(passes(), name, "pass").run(context);
  return py::make_tuple(context.module, changed);
}

std::optional<std::string> checkInvariant(
    const std::string& name, const Module& module, const std::string& method) {
  const Options none;
  return find(invariants(), name, "invariant").check(PassContext{module, method, none});
}

py::object toPython(const c10::IValue& value) { return torch::jit::toPyObject(value); }

py::tuple snapshot(const Module& module, const std::string& method) {
  const auto shot = takeSnapshot(module.get_method(method).graph());
  py::list nodes, values;
  for (const auto& n : shot.nodes) {
    nodes.append(
        py::make_tuple(
            n.name, n.kind, n.module, n.module_type, n.source, n.block, n.moves_data, n.inputs, n.outputs));
  }
  for (const auto& v : shot.values) {
    const bool readable = v.constant && !v.constant->isObject();
    values.append(
        py::make_tuple(
            v.id, v.name, v.is_tensor, v.written, v.result, v.constant.has_value(),
            readable ? toPython(*v.constant) : py::none()));
  }
  return py::make_tuple(nodes, values, shot.inputs, shot.outputs);
}

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

// Constants that the pattern's inputs were bound to, by the names they have in the pattern.
py::dict constantsOf(const Match& match, const Pattern& pattern) {
  py::dict constants;
  for (const Value* input : pattern.graph->inputs()) {
    const auto found = match.values.find(input);
    if (found != match.values.end() && isConstant(found->second)) {
      const auto value = torch::jit::toIValue(found->second);
      constants[py::str(input->debugName())] = toPython(*value);
    }
  }
  return constants;
}

std::shared_ptr<Rule> makeRule(
    const std::string& name, const std::string& pattern, const std::string& replacement,
    const std::map<std::string, std::vector<std::string>>& alternatives, const py::object& check) {
  Alternatives symbols;
  for (const auto& [wildcard, kinds] : alternatives) {
    auto& set = symbols[c10::Symbol::fromQualString(wildcard)];
    for (const auto& kind : kinds) {
      set.insert(c10::Symbol::fromQualString(kind));
    }
  }
  MatchCheck match_check;
  if (!check.is_none()) {
    match_check = [check](const Match& match, const Pattern& pattern) {
      return check(constantsOf(match, pattern)).cast<std::optional<std::string>>();
    };
  }
  return std::make_shared<Rule>(name, pattern, replacement, std::move(symbols), std::move(match_check));
}

// (rule, name of the matched operator, reason of a refusal or "") for each match.
py::list applyRules(
    const Module& module, const std::string& method, const std::vector<std::shared_ptr<Rule>>& rules) {
  const auto graph = module.get_method(method).graph();
  const auto names = nodeNames(*graph);
  py::list result;
  for (const auto& [rule, principal, refused] : rewrite(*graph, rules)) {
    const auto found = names.find(principal);
    result.append(py::make_tuple(rule, found == names.end() ? "" : found->second, refused));
  }
  return result;
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

void setStringAttribute(Module module, const std::string& name, const std::string& text) {
  if (module.hasattr(name)) {
    module.setattr(name, text);
  } else {
    module.register_attribute(name, c10::StringType::get(), text);
  }
}

template <typename Info>
py::dict describeAll(const std::map<std::string, Info>& table) {
  py::dict result;
  for (const auto& [name, info] : table) {
    if constexpr (std::is_same_v<Info, PassInfo>) {
      result[py::str(name)] = py::make_tuple(info.summary, info.requires_, info.ensures);
    } else {
      result[py::str(name)] = py::make_tuple(info.summary);
    }
  }
  return result;
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "Passes over TorchScript graphs.";
  m.attr("torch_version") = TORCH_VERSION; // compiled against
  py::class_<Rule, std::shared_ptr<Rule>>(m, "Rule").def_readonly("name", &Rule::name);
  m.def("passes", [] { return describeAll(passes()); });
  m.def("ops", [] { return describeAll(ops()); });
  m.def("invariants", [] { return describeAll(invariants()); });
  m.def("run_pass", &runPass);
  m.def("check_invariant", &checkInvariant);
  m.def("lint", [](const Module& module, const std::string& method) {
    lint(*module.get_method(method).graph());
  });
  m.def("node_kinds", [](const Module& module, const std::string& method) {
    py::dict kinds;
    for (const auto& [node, name] : nodeNames(*module.get_method(method).graph())) {
      kinds[py::str(name)] = node->kind().toQualString();
    }
    return kinds;
  });
  m.def("count_nodes", [](const Module& module, const std::string& method) {
    const auto nodes = module.get_method(method).graph()->nodes();
    return std::distance(nodes.begin(), nodes.end());
  });
  m.def("clone", &cloneModule);
  m.def("deepcopy", [](const Module& module) { return module.deepcopy(); });
  m.def("restore_state", [](const Module& module, const Module& copy) {
    restoreState(module._ivalue(), *copy._ivalue());
  });
  m.def(
      "fast_on_fbgemm",
      [](const std::vector<int64_t>& weight, const std::vector<int64_t>& stride,
         const std::vector<int64_t>& padding, const std::vector<int64_t>& dilation,
         int64_t groups) { return fastOnFbgemm(weight, stride, padding, dilation, groups); });
  m.def("snapshot", &snapshot);
  m.def("observations", &observations);
  m.def("rule", &makeRule);
  m.def("apply_rules", &applyRules);
  m.def("set_string_attribute", &setStringAttribute);
}

} // namespace jit_passes
