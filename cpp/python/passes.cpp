// Passes: what is registered, running them, and passes written in Python.
#include "conversions.h"

#include "core/calls.h"
#include "core/editor.h"
#include "core/executor.h"
#include "core/lint.h"
#include "core/module.h"

namespace jit_passes {
namespace {

using GraphPointer = std::shared_ptr<Graph>;

template <typename Info>
Info find(const std::map<std::string, Info>& table, const std::string& name, const char* what) {
  const auto found = table.find(name);
  if (found == table.end()) {
    throw py::key_error(std::string("there is no ") + what + " '" + name + "'");
  }
  return found->second;
}

py::tuple runPass(
    const std::string& name, const Module& module, const std::string& method, const py::dict& dict) {
  const Options options = toOptions(dict);
  PassContext context(module, method, options);
  const bool changed = find(passes(), name, "pass").run(context);
  return py::make_tuple(context.module(), changed);
}

bool runPassOnGraph(const std::string& name, const GraphPointer& graph, const py::dict& dict) {
  const Options options = toOptions(dict);
  PassContext context(graph, options);
  return find(passes(), name, "pass").run(context);
}

// The pass gets an editor and the options, and returns whether something changed.
void registerPass(
    const std::string& name, const std::string& summary, const py::function& function,
    std::vector<std::string> needs, std::vector<std::string> ensures) {
  const Function call(function);
  const auto run = [call](PassContext& context) {
    const py::gil_scoped_acquire lock;
    py::dict options;
    for (const auto& [key, value] : context.options()) {
      options[py::str(key)] = toPython(value);
    }
    const auto editor = std::make_shared<Editor>(context);
    struct Close { // a handle that Python keeps must not reach into a graph that is gone
      Editor& editor;
      ~Close() { editor.close(); }
    } close{*editor};
    return call(editor, options).template cast<bool>();
  };
  RegisterPass(name, summary, run, std::move(needs), std::move(ensures));
}

void hookExecutor(Moment moment, const py::function& function) {
  const Function call(function);
  onGraph(moment, [call](const GraphPointer& graph) {
    const py::gil_scoped_acquire lock;
    const py::object changed = call(graph);
    return changed.is_none() ? nullptr : changed.cast<GraphPointer>();
  });
}

// A function of another graph, with the name and the schema of this one, default arguments included.
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

GraphPointer graphOf(const Module& module, const std::string& method) {
  return module.get_method(method).graph();
}

int64_t countNodes(Graph& graph) {
  int64_t count = 0;
  forEachNode(graph, [&](Node*) { ++count; });
  return count;
}

} // namespace

void bindPasses(py::module_& m) {
  m.def("passes", [] { return describeAll(passes()); });
  m.def("ops", [] { return describeAll(ops()); });
  m.def("invariants", [] { return describeAll(invariants()); });
  m.def("register_pass", &registerPass);
  m.def("remove_pass", &removePass);
  m.def("run_pass", &runPass);
  m.def("run_pass_on_graph", &runPassOnGraph);
  m.def("check_invariant", [](const std::string& name, const Module& module, const std::string& method) {
    const Options none;
    return find(invariants(), name, "invariant").check(PassContext(module, method, none));
  });
  m.def("check_invariant_on_graph", [](const std::string& name, const GraphPointer& graph) {
    const Options none;
    return find(invariants(), name, "invariant").check(PassContext(graph, none));
  });
  m.def("lint", [](const Module& module, const std::string& method) { lint(*graphOf(module, method)); });
  m.def("lint_graph", [](const GraphPointer& graph) { lint(*graph); });
  m.def("count_nodes", [](const Module& module, const std::string& method) {
    return countNodes(*graphOf(module, method));
  });
  m.def("count_nodes_of_graph", [](const GraphPointer& graph) { return countNodes(*graph); });
  m.def("rebuild_function", &rebuildFunction);
  m.def("inline_graph", [](const GraphPointer& graph) { inlineCalls(*graph); });
  m.def("snapshot", [](const Module& module, const std::string& method, bool parameters) {
    const auto graph = graphOf(module, method);
    return toTuple(parameters ? takeSnapshot(module, method) : takeSnapshot(graph));
  });
  m.def("snapshot_of_graph", [](const GraphPointer& graph) { return toTuple(takeSnapshot(graph)); });

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
