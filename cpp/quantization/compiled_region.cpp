#include "compiled_region.h"

#include "graph/calls.h"

namespace jit_passes {
namespace {

using c10::Argument;
using c10::FunctionSchema;

std::string joined(const std::vector<Argument>& arguments, const std::function<std::string(size_t)>& text) {
  std::string list;
  for (size_t i = 0; i < arguments.size(); ++i) {
    list += (i == 0 ? "" : ", ") + text(i);
  }
  return list;
}

std::string signatureOf(const std::vector<Argument>& taken, const c10::TypePtr& given) {
  const auto type = [&](size_t i) { return taken[i].type()->annotation_str(); };
  return "(" + joined(taken, type) + ") -> " + given->annotation_str();
}

std::vector<Argument> withoutSelf(const FunctionSchema& schema) {
  return {schema.arguments().begin() + 1, schema.arguments().end()};
}

void checkModule(const FunctionSchema& region, const Module& compiled) {
  const auto method = compiled.find_method("forward");
  TORCH_CHECK(method, "the module that the target compiled has no method 'forward'");
  const auto& schema = method->function().getSchema();
  const auto wanted = withoutSelf(region), found = withoutSelf(schema);
  bool fits = wanted.size() <= found.size() &&
              schema.returns().at(0).type()->isSubtypeOf(*region.returns().at(0).type());
  for (size_t i = 0; fits && i < found.size(); ++i) {
    fits = i < wanted.size() ? wanted[i].type()->isSubtypeOf(*found[i].type())
                             : found[i].default_value().has_value();
  }
  TORCH_CHECK(
      fits, "the module that the target compiled has forward",
      signatureOf(found, schema.returns().at(0).type()), ", and the region forward",
      signatureOf(wanted, region.returns().at(0).type()));
}

void checkObject(const FunctionSchema& region, const c10::ClassType& type) {
  const auto tensor = [](const c10::TypePtr& t) { return t->kind() == c10::TypeKind::TensorType; };
  const auto tensors = [&](const c10::TypePtr& t) {
    return t->kind() == c10::TypeKind::ListType && tensor(t->containedType(0));
  };
  const auto* run = type.findMethod("run");
  TORCH_CHECK(
      run != nullptr && run->getSchema().arguments().size() == 2 &&
          tensors(run->getSchema().arguments()[1].type()) && tensors(run->getSchema().returns().at(0).type()),
      "the object that the target compiled, of the class ", type.annotation_str(),
      ", has no method run(Tensor[] inputs) -> Tensor[]");
  const auto taken = withoutSelf(region);
  const auto given = region.returns().at(0).type();
  const auto parts = given->kind() == c10::TypeKind::TupleType ? given->containedTypes()
                                                               : c10::ArrayRef<c10::TypePtr>(given);
  TORCH_CHECK(
      std::all_of(taken.begin(), taken.end(), [&](const auto& a) { return tensor(a.type()); }) &&
          std::all_of(parts.begin(), parts.end(), tensor),
      "an object can only replace a region that takes and gives tensors, and this region is forward",
      signatureOf(taken, given));
}

// The source of a method that passes its arguments on, and returns the results.
std::string sourceOf(const FunctionSchema& region, bool is_module) {
  const auto taken = withoutSelf(region);
  const auto given = region.returns().at(0).type();
  const auto names = joined(taken, [](size_t i) { return "input_" + std::to_string(i); });
  std::string source = "def forward(self";
  for (size_t i = 0; i < taken.size(); ++i) {
    source += ", input_" + std::to_string(i) + ": " + taken[i].type()->annotation_str();
  }
  source += ") -> " + given->annotation_str() + ":\n  ";
  if (is_module) {
    return source + "return self.compiled.forward(" + names + ")\n";
  }
  source += "results = self.compiled.run([" + names + "])\n  ";
  if (given->kind() != c10::TypeKind::TupleType) {
    return source + "return results[0]\n";
  }
  std::string results;
  for (size_t i = 0; i < given->containedTypeSize(); ++i) {
    results += (i == 0 ? "" : ", ") + std::string("results[") + std::to_string(i) + "]";
  }
  return source + "return " + results + "\n";
}

} // namespace

void replaceRegion(Module& root, Graph& graph, const std::string& name, const c10::IValue& compiled) {
  const auto region = root.attr(name).toModule().get_method("forward").function().getSchema();
  const auto type = compiled.type()->expect<c10::ClassType>();
  if (type->is_module()) {
    checkModule(region, compiled.toModule());
  } else {
    checkObject(region, *type);
  }
  // The module gets a compilation unit of its own. The root's unit has the type of the region. Its graph would keep
  // all weights in memory as long as anything of this unit lives.
  Module made(
      c10::QualifiedName("__torch__.jit_passes.CompiledRegion"),
      std::make_shared<torch::jit::CompilationUnit>());
  made.register_attribute("compiled", type, compiled);
  made.define(sourceOf(region, type->is_module()));
  root.type()->unsafeChangeAttributeType(name, made.type());
  root._ivalue()->setAttr(name, made._ivalue());
  forEachNode(graph, [&](Node* node) {
    if (node->kind() == prim::GetAttr && node->input() == graph.inputs().at(0) &&
        node->s(attr::name) == name) {
      node->output()->setType(made.type());
    }
  });
}

} // namespace jit_passes
