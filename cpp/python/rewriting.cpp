// Rewrite rules whose checks and computations are Python functions.
#include "conversions.h"

#include "graph/module.h"
#include "rewriting/rewriter.h"

namespace jit_passes {
namespace {

Alternatives toAlternatives(const std::map<std::string, std::vector<std::string>>& names) {
  Alternatives alternatives;
  for (const auto& [name, kinds] : names) {
    auto& set = alternatives[symbol(name)];
    for (const auto& kind : kinds) {
      set.insert(symbol(kind));
    }
  }
  return alternatives;
}

// (kind, module, module type, source, inputs by name, operators by name in the pattern, names of written values); an
// input is (type, known, value, shape).
py::tuple toTuple(const MatchView& view) {
  const Node* principal = view.match.principal(view.pattern);
  const auto [path, type] = moduleOf(principal);
  py::dict inputs, operators;
  for (const Value* input : view.pattern.graph->inputs()) {
    const auto found = view.match.values.find(input);
    if (found == view.match.values.end()) {
      continue;
    }
    const auto known = view.known(input);
    const bool readable = known && !known->isObject();
    py::object shape = py::none();
    if (readable && known->isTensor()) {
      shape = py::tuple(py::cast(known->toTensor().sizes().vec()));
    } else if (const auto tensor = found->second->type()->cast<c10::TensorType>()) {
      if (const auto sizes = tensor->sizes().concrete_sizes()) {
        shape = py::tuple(py::cast(*sizes));
      }
    }
    inputs[py::str(inputName(input))] = py::make_tuple(
        found->second->type()->annotation_str(), readable, readable ? toPython(*known) : py::none(), shape);
  }
  py::list written;
  for (const auto& [wanted, value] : view.match.values) {
    if (wanted->hasDebugName() && view.written.has(value)) {
      written.append(inputName(wanted));
    }
  }
  for (const Node* wanted : view.pattern.nodes()) {
    operators[wanted->kind().toQualString()] = view.match.nodes.at(wanted)->kind().toQualString();
  }
  return py::make_tuple(
      principal->kind().toQualString(), path, type, sourceLine(principal), inputs, operators, written);
}

using Text = std::optional<std::string>;

// Renames %x.1 to %x: scripting renames a parameter that the function assigns.
GraphPointer graphOfFunction(const py::object& source) {
  auto graph = source.cast<GraphPointer>();
  for (Value* input : graph->inputs()) {
    input->setDebugName(input->debugNameBase());
  }
  return graph;
}

// Pattern and replacement are IR text, or graphs of scripted functions.
Pattern toPattern(const py::object& source, const Alternatives& alternatives) {
  return py::isinstance<py::str>(source) ? Pattern(source.cast<std::string>(), alternatives)
                                         : Pattern(graphOfFunction(source), alternatives);
}

std::shared_ptr<Rule> makeRule(
    const std::string& name, const py::object& pattern, const py::object& replacement,
    const std::map<std::string, std::vector<std::string>>& names, const py::object& check,
    const py::object& compute, bool repeat, bool commutative) {
  const Alternatives alternatives = toAlternatives(names);
  auto rule = std::make_shared<Rule>(
      name, toPattern(pattern, alternatives),
      py::isinstance<py::str>(replacement)
          ? readGraph(replacement.cast<std::string>(), alternatives, TextOf::Replacement).graph
          : graphOfFunction(replacement));
  rule->repeat = repeat;
  rule->commutative = commutative;
  if (!check.is_none()) {
    rule->check = [call = Function(check)](const MatchView& view) {
      const py::gil_scoped_acquire lock;
      return call(toTuple(view)).cast<Text>();
    };
  }
  if (!compute.is_none()) {
    rule->compute = [call = Function(compute)](const MatchView& view) {
      const py::gil_scoped_acquire lock;
      std::unordered_map<std::string, Computed> result;
      for (const auto& [key, value] : call(toTuple(view)).cast<py::dict>()) {
        const auto pair = value.cast<py::tuple>();
        const auto kind = pair[1].cast<bool>() ? Computed::Parameter : Computed::Buffer;
        result[key.cast<std::string>()] = {jit_passes::toIValue(pair[0]), kind};
      }
      return result;
    };
  }
  return rule;
}

// (rule, name of the matched operator, source line, reason of a refusal or "") for each match.
py::list toList(const std::vector<Rewrite>& rewrites) {
  py::list result;
  for (const auto& record : rewrites) {
    result.append(py::make_tuple(record.rule, record.name, record.source, record.refused));
  }
  return result;
}

py::list explainRule(PassContext context, const Rule& rule) {
  py::list result;
  for (const auto& row : explain(context, rule)) {
    result.append(py::make_tuple(row.name, row.source, row.matched, row.reason));
  }
  return result;
}

} // namespace

void bindRewriting(py::module_& m) {
  static const Options none;
  py::class_<Rule, std::shared_ptr<Rule>>(m, "Rule")
      .def_readonly("name", &Rule::name)
      .def_readonly("computed", &Rule::computed)
      .def_property_readonly("size", [](const Rule& rule) { return rule.pattern.nodes().size(); })
      .def_property_readonly(
          "anchor", [](const Rule& rule) { return rule.pattern.anchor()->kind().toQualString(); });
  m.def("rule", &makeRule);
  m.def("apply_rules", [](const py::object& subject, const std::string& method, const Rules& rules) {
    auto context = contextOf(subject, method, none);
    return toList(rewrite(context, rules));
  });
  m.def("explain_rule", [](const Module& module, const std::string& method, const Rule& rule) {
    return explainRule(PassContext(module, method, none), rule);
  });
  m.def("register_rules_pass", [](const std::string& name, const std::string& summary, const Rules& rules) {
    registerPass({name, summary, passOf(rules), {"inlined"}, {}, {}});
  });
}

} // namespace jit_passes
