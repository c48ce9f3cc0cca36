#include "module.h"

namespace jit_passes {
namespace {

using c10::IValue;
using Object = c10::intrusive_ptr<c10::ivalue::Object>;

bool holdsClass(const c10::TypePtr& type) {
  if (const auto class_type = type->cast<c10::ClassType>()) {
    return !class_type->is_module();
  }
  const auto parts = type->containedTypes();
  return type->kind() == c10::TypeKind::EnumType || std::any_of(parts.begin(), parts.end(), holdsClass);
}

// Classes and enumerations of the model's own code live as long as the unit that they come from.
bool usesClasses(Graph& graph) {
  const auto of_class = [](const Value* value) { return holdsClass(value->type()); };
  bool found = std::any_of(graph.inputs().begin(), graph.inputs().end(), of_class);
  forEachNode(graph, [&](const Node* node) {
    found |= std::any_of(node->outputs().begin(), node->outputs().end(), of_class);
  });
  return found;
}

class Builder {
 public:
  Builder(const KeepAttribute& keep, Values values, std::shared_ptr<torch::jit::CompilationUnit> unit)
      : keep_(keep), values_(values), unit_(std::move(unit)) {}

  Module build(const Object& original) {
    if (const auto known = made_.find(original.get()); known != made_.end()) {
      return known->second;
    }
    const auto type = original->type();
    Module module(*type->name(), unit_, /*shouldMangle=*/true);
    made_.emplace(original.get(), module);
    for (size_t slot = 0; slot < type->numAttributes(); ++slot) {
      const auto& name = type->getAttributeName(slot);
      if (!keep_(*original, name)) {
        continue;
      }
      const IValue value = original->getSlot(slot);
      if (value.isModule()) {
        module.register_module(name, build(value.toObject()));
      } else {
        module.register_attribute(
            name, type->getAttribute(slot), values_ == Values::Copied ? value.deepcopy(copies_) : value,
            type->is_parameter(slot), type->is_buffer(slot));
      }
    }
    return module;
  }

 private:
  const KeepAttribute& keep_;
  Values values_;
  std::shared_ptr<torch::jit::CompilationUnit> unit_;
  std::unordered_map<const c10::ivalue::Object*, Module> made_;
  IValue::HashIdentityIValueMap copies_;
};

void retype(Graph& graph, const Module& module) {
  graph.inputs().at(0)->setType(module.type());
  forEachNode(graph, [](Node* node) {
    const auto owner =
        node->kind() == c10::prim::GetAttr ? node->input()->type()->cast<c10::ClassType>() : nullptr;
    if (owner && owner->is_module()) {
      node->output()->setType(owner->getAttribute(node->s(c10::attr::name)));
    }
  });
}

} // namespace

Module rebuildModule(
    const Module& original, const std::string& method, const std::shared_ptr<Graph>& graph,
    const KeepAttribute& keep, Values values) {
  const auto unit = usesClasses(*graph) ? original._ivalue()->compilation_unit()
                                        : std::make_shared<torch::jit::CompilationUnit>();
  Module module = Builder(keep, values, unit).build(original._ivalue());
  retype(*graph, module);
  const auto& schema = original.get_method(method).function().getSchema();
  auto arguments = schema.arguments();
  arguments.at(0) = arguments.at(0).cloneWithType(module.type());
  auto* function = unit->create_function(c10::QualifiedName(*module.type()->name(), method), graph);
  module.type()->addMethod(function);
  function->setSchema(schema.cloneWithArguments(std::move(arguments)));
  return module;
}

Module cloneModule(const Module& original, const std::string& method) {
  const auto graph = original.get_method(method).graph()->copy();
  const auto all = [](const c10::ivalue::Object&, const std::string&) { return true; };
  return rebuildModule(original, method, graph, all, Values::Shared);
}

} // namespace jit_passes
