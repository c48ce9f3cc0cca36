// The registry of passes for Python, runs of passes, and passes written in Python.
#include "conversions.h"

#include "facts/dtypes.h"
#include "facts/tensor_facts.h"
#include "graph/calls.h"
#include "graph/executor.h"
#include "graph/lint.h"
#include "graph/module.h"
#include "graph/print.h"
#include "quantization/compiled_region.h"
#include "quantization/regions.h"
#include "rewriting/rewriter.h"
#include "view/editor.h"

namespace jit_passes {
namespace {

GraphPointer graphOf(const py::object& subject, const std::string& method) {
  static const Options none;
  return contextOf(subject, method, none).graph();
}

template <typename Info>
Info known(const std::optional<Info>& found, const std::string& name, const char* what) {
  if (!found) {
    throw py::key_error(std::string("there is no ") + what + " '" + name + "'");
  }
  return *found;
}

using Remarks = std::vector<std::pair<std::string, std::string>>;

Remarks toPairs(const std::vector<Remark>& remarks) {
  Remarks pairs;
  for (const auto& remark : remarks) {
    pairs.emplace_back(remark.name, remark.reason);
  }
  return pairs;
}

// (the module or graph, whether something changed, remarks as (node, reason)).
py::tuple run(PassContext context, const PassFunction& function) {
  const bool changed = function(context);
  const py::object subject = context.hasModule() ? py::cast(context.module()) : py::cast(context.graph());
  return py::make_tuple(subject, changed, toPairs(context.remarks()));
}

py::tuple runPass(
    const std::string& name, const py::object& subject, const std::string& method, const py::dict& given) {
  const PassInfo info = known(findPass(name), name, "pass");
  Options options = toOptions(given);
  for (const auto& option : info.options) {
    if (option.value) {
      options.emplace(option.name, *option.value);
    }
  }
  return run(contextOf(subject, method, options), info.run);
}

struct OpenEditor { // Python may keep the editor longer than the graph lives
  explicit OpenEditor(PassContext& context) : editor(std::make_shared<Editor>(context)) {}
  ~OpenEditor() { editor->close(); }
  std::shared_ptr<Editor> editor;
};

// A pass in Python gets an editor and the options. The pass returns whether something changed, and remarks.
PassFunction toPass(const py::function& function) {
  return [call = Function(function)](PassContext& context) {
    const py::gil_scoped_acquire lock;
    py::dict options;
    for (const auto& [key, value] : context.options()) {
      options[py::str(key)] = toPython(value);
    }
    const OpenEditor open(context);
    const auto [changed, remarks] = call(open.editor, options).template cast<std::pair<bool, Remarks>>();
    for (const auto& [name, reason] : remarks) {
      context.remark({name, reason});
    }
    return changed;
  };
}

py::tuple runFunction(const py::function& function, const py::object& subject, const std::string& method) {
  static const Options none;
  return run(contextOf(subject, method, none), toPass(function));
}

py::tuple runRules(const Rules& rules, const py::object& subject, const std::string& method) {
  static const Options none;
  return run(contextOf(subject, method, none), passOf(rules));
}

// Options are (name, type, whether it has a default, the default).
using PackedOption = std::tuple<std::string, std::string, bool, py::object>;

void registerFunction(
    const std::string& name, const std::string& summary, const py::function& function,
    std::vector<std::string> needs, std::vector<std::string> ensures,
    const std::vector<PackedOption>& packed) {
  std::vector<PassOption> options;
  for (const auto& [option, type, optional, value] : packed) {
    options.push_back({option, type, optional ? std::optional(jit_passes::toIValue(value)) : std::nullopt});
  }
  registerPass({name, summary, toPass(function), std::move(needs), std::move(ensures), std::move(options)});
}

// The check gets an editor to read the graph with. The check returns the problem, or None.
void registerCheck(const std::string& name, const std::string& summary, const py::function& function) {
  const auto check = [call = Function(function)](const PassContext& context) {
    const py::gil_scoped_acquire lock;
    PassContext own = context;
    const OpenEditor open(own);
    return call(open.editor).template cast<std::optional<std::string>>();
  };
  registerInvariant({name, summary, check});
}

std::optional<std::string> checkInvariant(
    const std::string& name, const py::object& subject, const std::string& method, const Remarks& remarks) {
  static const Options none;
  PassContext context = contextOf(subject, method, none);
  for (const auto& [node, reason] : remarks) {
    context.remark({node, reason});
  }
  return known(findInvariant(name), name, "invariant").check(context);
}

void hookExecutor(Moment moment, const py::function& function) {
  const Function call(function);
  onGraph(moment, [call](const GraphPointer& graph) {
    const py::gil_scoped_acquire lock;
    const py::object changed = call(graph);
    return changed.is_none() ? nullptr : changed.cast<GraphPointer>();
  });
}

// A function with another graph, and with the name, schema and default arguments of this function.
torch::jit::StrongFunctionPtr rebuildFunction(
    const torch::jit::StrongFunctionPtr& original, const GraphPointer& graph) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  auto* function = unit->create_function(original.function_->qualname(), graph);
  function->setSchema(original.function_->getSchema());
  return {unit, function};
}

py::tuple toTuple(const Editor::Inserted& inserted) {
  py::list values;
  for (const auto& value : inserted.values) {
    values.append(jit_passes::toTuple(value));
  }
  return py::make_tuple(inserted.index, jit_passes::toTuple(inserted.node), values);
}

py::tuple toTuple(const Snapshot& shot) {
  py::list nodes, values;
  for (const auto& node : shot.nodes) {
    nodes.append(jit_passes::toTuple(node));
  }
  for (const auto& value : shot.values) {
    values.append(jit_passes::toTuple(value));
  }
  return py::make_tuple(nodes, values, shot.inputs, shot.outputs);
}

py::tuple describe(const PassInfo& info) {
  std::vector<PackedOption> options;
  for (const auto& option : info.options) {
    options.emplace_back(
        option.name, option.type, option.value.has_value(),
        option.value ? toPython(*option.value) : py::none());
  }
  return py::make_tuple(info.summary, info.requires_, info.ensures, options);
}

template <typename Info>
py::tuple describe(const Info& info) {
  return py::make_tuple(info.summary);
}

template <typename Info>
py::dict describeAll(const std::map<std::string, Info>& table) {
  py::dict result;
  for (const auto& [name, info] : table) {
    result[py::str(name)] = describe(info);
  }
  return result;
}

// A unit is a list of numbers of nodes in program order.
std::vector<int64_t> regionsOf(
    const Module& module, const std::string& method, const std::vector<std::vector<size_t>>& units,
    const Links& links) {
  const auto graph = module.get_method(method).graph();
  const auto nodes = nodesInOrder(*graph);
  Units found;
  for (const auto& unit : units) {
    auto& in = found.emplace_back();
    for (const size_t index : unit) {
      in.push_back(nodes.at(index));
    }
  }
  return findRegions(graph, found, links);
}

// The facts of each tensor, by the value's number: (fewest axes, most axes, sizes of the last axes, dtype).
py::dict toDict(const std::unordered_map<int64_t, TensorFacts>& facts) {
  py::dict found;
  for (const auto& [id, known] : facts) {
    found[py::int_(id)] = py::make_tuple(known.axes.least, known.axes.most, known.sizes, known.dtype);
  }
  return found;
}

} // namespace

void bindPasses(py::module_& m) {
  m.def("passes", [] { return describeAll(passes()); });
  m.def("ops", [] { return describeAll(ops()); });
  m.def("invariants", [] { return describeAll(invariants()); });
  m.def("find_pass", [](const std::string& name) {
    const auto info = findPass(name);
    return info ? std::optional(describe(*info)) : std::nullopt;
  });
  m.def("register_pass", &registerFunction);
  m.def("raise_kept_errors", &raiseKeptErrors);
  m.def("remove_pass", &removePass);
  m.def("register_invariant", &registerCheck);
  m.def("remove_invariant", &removeInvariant);
  m.def("run_pass", &runPass);
  m.def("run_function", &runFunction);
  m.def("run_rules", &runRules);
  m.def(
      "check_invariant", &checkInvariant, py::arg("name"), py::arg("subject"), py::arg("method"),
      py::arg("remarks") = Remarks());
  m.def(
      "lint", [](const py::object& subject, const std::string& method) { lint(*graphOf(subject, method)); });
  m.def("count_nodes", [](const py::object& subject, const std::string& method) {
    return nodesInOrder(*graphOf(subject, method)).size();
  });
  m.def("format_graph", [](const py::object& subject, const std::string& method) {
    return formatGraph(*graphOf(subject, method));
  });
  m.def("rebuild_function", &rebuildFunction);
  m.def("inline_graph", [](const GraphPointer& graph) { inlineCalls(*graph); });
  m.def("snapshot", [](const Module& module, const std::string& method, bool parameters) {
    return toTuple(
        parameters ? takeSnapshot(module, method) : takeSnapshot(module.get_method(method).graph()));
  });
  m.def("snapshot_of_graph", [](const GraphPointer& graph) { return toTuple(takeSnapshot(graph)); });

  m.def("float_operators", &floatOperators, py::arg("module"), py::arg("method"));
  m.def(
      "tensor_facts",
      [](const py::object& subject, const std::string& method, bool parameters) {
        static const Options none;
        return toDict(tensorFacts(contextOf(subject, method, none), /*attributes_apart=*/parameters));
      },
      py::arg("subject"), py::arg("method"), py::arg("parameters") = false);
  m.def("find_regions", &regionsOf, py::arg("module"), py::arg("method"), py::arg("units"), py::arg("links"));
  m.def(
      "replace_region",
      [](Module module, const std::string& method, const std::string& name, const torch::jit::Object& made) {
        replaceRegion(module, *module.get_method(method).graph(), name, made._ivalue());
      },
      py::arg("module"), py::arg("method"), py::arg("name"), py::arg("made"));

  m.def("hook_after_autograd", [](const py::function& f) { hookExecutor(Moment::AfterAutograd, f); });
  m.def("hook_after_fusion", [](const py::function& f) { hookExecutor(Moment::AfterFusion, f); });
  m.def("activate_hooks", [](bool after_autograd, bool after_fusion) {
    setActive(Moment::AfterAutograd, after_autograd);
    setActive(Moment::AfterFusion, after_fusion);
  });
  m.def("take_profile", [](GraphPointer graph) { return takeProfile(graph); });
  m.def(
      "put_profile", [](const GraphPointer& graph, const Profile& profile) { putProfile(*graph, profile); });

  py::class_<Editor, std::shared_ptr<Editor>>(m, "Editor")
      .def_property_readonly("has_module", &Editor::hasModule)
      .def("snapshot", [](const Editor& editor) { return toTuple(editor.snapshot()); })
      .def("fresh", [](const Editor& editor) { return toTuple(editor.fresh()); })
      .def("tensor_facts", [](const Editor& editor) { return toDict(editor.facts()); })
      .def(
          "insert",
          [](Editor& editor, const std::string& kind, const std::vector<int64_t>& inputs, int64_t before,
             int64_t like) { return toTuple(editor.insert(kind, inputs, before, like)); })
      .def(
          "insert_constant",
          [](Editor& editor, const py::object& value, int64_t before) {
            return toTuple(editor.insertConstant(jit_passes::toIValue(value), before));
          })
      .def(
          "insert_attribute", [](Editor& editor, const std::string& path,
                                 int64_t before) { return toTuple(editor.insertAttribute(path, before)); })
      .def("add_attribute", &Editor::addAttribute)
      .def("set_operand", &Editor::setOperand)
      .def("replace_uses", &Editor::replaceUses)
      .def("remove", [](Editor& editor, int64_t node) {
        const auto removed = editor.remove(node);
        return py::make_tuple(removed.nodes, removed.results);
      });
}

} // namespace jit_passes
