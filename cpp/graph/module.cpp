#include "module.h"

#include "bound_modules.h"
#include "calls.h"
#include "kept_modules.h"

namespace jit_passes {
namespace {

using c10::IValue;
using Object = c10::intrusive_ptr<c10::ivalue::Object>;

bool holdsClass(const c10::TypePtr& type) {
  if (const auto class_type = type->cast<c10::ClassType>()) {
    return !class_type->is_module();
  }
  const auto parts = type->containedTypes();
  return type->kind() == c10::TypeKind::EnumType || std::ranges::any_of(parts, holdsClass);
}

// Classes and enumerations of the model's own code live as long as the unit that they come from.
bool usesClasses(Graph& graph) {
  bool found = false;
  forEachValue(graph.block(), [&](const Value* value) { found |= holdsClass(value->type()); });
  return found;
}

// Copies attributes. Copies of tensors that share memory share memory too, and copies of parameters stay leaves.
class Copier {
 public:
  IValue copy(const IValue& value) {
    value.visit([&](const IValue& part) {
      if (part.isTensor() && part.toTensor().defined() && !copies_.count(part)) {
        copies_.emplace(part, copyTensor(part.toTensor()));
      }
      return false;
    });
    return value.deepcopy(copies_);
  }

 private:
  at::Tensor copyTensor(const at::Tensor& tensor) {
    const auto original = tensor.detach();
    auto copy = original.layout() == at::kStrided && original.has_storage() && !original.is_quantized()
                    ? viewOfCopy(original)
                    : original.clone();
    return copy.set_requires_grad(tensor.requires_grad());
  }

  at::Tensor viewOfCopy(const at::Tensor& tensor) {
    const auto storage = tensor.storage();
    auto& bytes = storages_[storage.unsafeGetStorageImpl()];
    if (!bytes.defined()) {
      const auto size = static_cast<int64_t>(storage.nbytes());
      bytes = at::empty({0}, tensor.options().dtype(at::kByte)).set_(storage, 0, {size}, {1}).clone();
    }
    return at::empty({0}, tensor.options())
        .set_(bytes.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  }

  IValue::HashIdentityIValueMap copies_;
  std::unordered_map<const c10::StorageImpl*, at::Tensor> storages_;
};

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
      if (value.isModule() && isOpaque(value.type())) {
        addAttribute(module, name, value.type(), opaque(value));
      } else if (value.isModule()) {
        const Module inner = build(value.toObject());
        addAttribute(module, name, inner.type(), inner._ivalue());
      } else {
        const auto role = type->is_parameter(slot) ? AttributeRole::Parameter
                          : type->is_buffer(slot)  ? AttributeRole::Buffer
                                                   : AttributeRole::Plain;
        addAttribute(
            module, name, type->getAttribute(slot), values_ == Values::Copied ? copier_.copy(value) : value,
            role);
      }
    }
    return module;
  }

 private:
  // The module as it is, with attributes of its own: train() and eval() set one.
  IValue opaque(const IValue& module) {
    auto& made = opaque_[&module.toObjectRef()];
    if (made.isNone()) {
      made = values_ == Values::Copied ? copier_.copy(module) : IValue(module.toObjectRef().copy());
    }
    return made;
  }

  const KeepAttribute& keep_;
  Values values_;
  std::shared_ptr<torch::jit::CompilationUnit> unit_;
  std::unordered_map<const c10::ivalue::Object*, Module> made_;
  std::unordered_map<const c10::ivalue::Object*, IValue> opaque_;
  Copier copier_;
};

void retypeAttributes(Graph& graph) {
  forEachNode(graph, [](Node* node) {
    if (node->kind() == prim::fork) {
      auto& branch = *node->g(attr::Subgraph);
      for (size_t i = 0; i < node->inputs().size(); ++i) {
        branch.inputs().at(i)->setType(node->input(i)->type());
      }
      retypeAttributes(branch);
    }
    const auto owner =
        node->kind() == prim::GetAttr ? node->input()->type()->cast<c10::ClassType>() : nullptr;
    if (owner && owner->is_module()) {
      const auto slot = attributeSlot(*owner, node->s(attr::name));
      TORCH_CHECK(slot, owner->repr_str(), " has no attribute '", node->s(attr::name), "'");
      node->output()->setType(owner->getAttribute(*slot));
    }
  });
}

// The module at a path, if it is the only one of its type: attributes are added to types.
std::optional<Module> ownedModule(const Module& root, const std::string& path) {
  if (path.empty()) {
    return root; // no module contains one of its own type
  }
  const auto found = attributeAt(root, path);
  if (!found || !found->isModule()) {
    return std::nullopt;
  }
  const Module module = found->toModule();
  for (const Module& other : root.modules()) {
    if (other.type() == module.type() && other._ivalue() != module._ivalue()) {
      return std::nullopt;
    }
  }
  return module;
}

bool keepForClone(const c10::ivalue::Object&, const std::string& name) { return name != kKeptModules; }

} // namespace

Module rebuildModule(
    const Module& original, const Methods& methods, const KeepAttribute& keep, Values values) {
  const bool uses_classes =
      std::ranges::any_of(methods, [](const auto& m) { return usesClasses(*m.second); });
  const auto unit =
      uses_classes ? original._ivalue()->compilation_unit() : std::make_shared<torch::jit::CompilationUnit>();
  Module module = Builder(keep, values, unit).build(original._ivalue());
  for (const auto& [name, graph] : methods) {
    graph->inputs().at(0)->setType(module.type());
    retypeAttributes(*graph);
    const auto& schema = original.get_method(name).function().getSchema();
    auto arguments = schema.arguments();
    arguments.at(0) = arguments.at(0).cloneWithType(module.type());
    auto* function = unit->create_function(c10::QualifiedName(*module.type()->name(), name), graph);
    module.type()->addMethod(function);
    function->setSchema(schema.cloneWithArguments(std::move(arguments)));
  }
  return module;
}

std::optional<c10::IValue> attributeOf(const Module& self, const Value* value) {
  const Node* node = value->node();
  if (node->kind() == prim::Param) {
    const bool is_self = node->owningBlock()->owningNode() == nullptr && value->offset() == 0;
    return is_self ? std::optional<IValue>(self._ivalue()) : std::nullopt;
  }
  if (node->kind() != prim::GetAttr) {
    return std::nullopt;
  }
  const auto owner = attributeOf(self, node->input());
  return owner && owner->isObject() ? attributeNamed(owner->toObjectRef(), node->s(attr::name))
                                    : std::nullopt;
}

std::string attributePath(const Value* value) {
  std::string path;
  for (const Node* node = value->node(); node->kind() == prim::GetAttr; node = node->input()->node()) {
    path = node->s(attr::name) + (path.empty() ? "" : ".") + path;
  }
  return path;
}

std::unordered_set<std::string> assignedAttributes(Graph& graph) {
  std::unordered_set<std::string> names;
  forEachNode(graph, [&](const Node* node) {
    if (node->kind() == prim::SetAttr) {
      names.insert(node->s(attr::name));
    }
  });
  return names;
}

bool passesThrough(const Value* value, const std::unordered_set<std::string>& attributes) {
  const Node* node = value->node();
  return node->kind() == prim::GetAttr &&
         (attributes.count(node->s(attr::name)) > 0 || passesThrough(node->input(), attributes));
}

std::string addTensorAttribute(
    Module& root, const std::string& path, const std::string& name, const at::Tensor& tensor,
    bool parameter) {
  const auto owned = ownedModule(root, path);
  Module owner = owned.value_or(root);
  std::string base = name, prefix = path.empty() ? "" : path + ".";
  if (!owned) {
    base = prefix + name;
    std::ranges::replace(base, '.', '_');
    prefix = "";
  }
  std::string free = base;
  for (int number = 1; attributeSlot(*owner.type(), free); ++number) {
    free = base + "_" + std::to_string(number);
  }
  addAttribute(
      owner, free, c10::TensorType::get(), tensor,
      parameter ? AttributeRole::Parameter : AttributeRole::Buffer);
  return prefix + free;
}

Value* readAttribute(Graph& graph, Node* before, const std::string& path) {
  torch::jit::WithInsertPoint guard(before);
  Value* value = graph.inputs().at(0);
  for (const auto& part : namesIn(path)) {
    value = insertGetAttr(graph, value, part);
  }
  return value;
}

Value* readSwitch(Module& root, Graph& graph, Node* before, const std::string& name, bool initially) {
  if (!root.hasattr(name)) {
    root.register_buffer(name, at::full({}, initially, at::kBool));
  }
  const auto held = root.attr(name);
  TORCH_CHECK(
      held.isTensor() && held.toTensor().scalar_type() == at::kBool && held.toTensor().dim() == 0,
      "the module has an attribute '", name,
      "' that is no bool buffer, and a pass adds a switch of this name: rename the attribute");
  torch::jit::WithInsertPoint guard(before);
  return graph.insert(aten::Bool, {insertGetAttr(graph, graph.inputs().at(0), name)});
}

Module cloneModule(const Module& original) {
  Methods methods;
  for (const auto& method : original.get_methods()) {
    auto graph = method.graph()->copy();
    inlineCalls(*graph, original);
    if (findCall(*graph) != nullptr || exchangesModules(*graph)) {
      const Module clone = original.clone();
      for (const auto& other : clone.get_methods()) {
        inlineCalls(*other.graph());
        nameModules(*other.graph(), clone);
      }
      return clone;
    }
    nameModules(*graph, original);
    restoreModules(original, method.name(), *graph);
    methods.emplace_back(method.name(), std::move(graph));
  }
  return rebuildModule(original, methods, keepForClone, Values::Shared);
}

Module cloneModule(const Module& original, const std::string& method) {
  const auto graph = original.get_method(method).graph()->copy();
  inlineCalls(*graph, original);
  nameModules(*graph, original);
  restoreModules(original, method, *graph);
  return rebuildModule(original, {{method, graph}}, keepForClone, Values::Shared);
}

std::shared_ptr<Graph> inlinedGraph(const Module& module, const std::string& method) {
  const auto own = module.get_method(method).graph();
  if (findCall(*own) == nullptr) {
    return own;
  }
  auto graph = own->copy();
  inlineCalls(*graph, module);
  nameModules(*graph, module);
  return graph;
}

std::vector<std::pair<std::string, std::string>> reportsOfParts(
    const Module& module, const std::string& method) {
  std::vector<std::pair<std::string, std::string>> found;
  const auto graph = inlinedGraph(module, method);
  forEachNode(*graph, [&](const Node* node) {
    if (node->kind() != prim::CallMethod || !hasReport(objectOf(node)->type())) {
      return;
    }
    const auto path = attributePath(objectOf(node));
    const auto part = attributeAt(module, path);
    if (part && std::ranges::none_of(found, [&](const auto& known) { return known.first == path; })) {
      found.emplace_back(path, part->toObjectRef().getAttr("jit_passes_report").toStringRef());
    }
  });
  return found;
}

namespace {

void restoreObject(
    const Object& object, const c10::ivalue::Object& copy, const std::unordered_set<std::string>& kept,
    const std::string& path) {
  const auto type = object->type();
  for (size_t slot = 0; slot < type->numAttributes(); ++slot) {
    const auto value = object->getSlot(slot);
    const auto own_path = path + type->getAttributeName(slot);
    if (value.isModule()) {
      restoreObject(value.toObject(), copy.getSlot(slot).toObjectRef(), kept, own_path + ".");
    } else if (!kept.count(own_path) && !value.isObject()) {
      object->setSlot(slot, copy.getSlot(slot));
    }
  }
}

// Whether only the constant's node holds its memory. `constant` is the second of the two references.
bool isHeldOnce(const at::Tensor& constant) {
  return constant.use_count() == 2 && constant.has_storage() && constant.storage().use_count() == 1;
}

} // namespace

void restoreState(const Module& module, const Module& copy, const std::unordered_set<std::string>& kept) {
  restoreObject(module._ivalue(), *copy._ivalue(), kept, "");
}

void copyConstants(Graph& graph) {
  std::unordered_map<const at::TensorImpl*, at::Tensor> copies; // several constants may be one tensor
  forEachNode(graph, [&](Node* node) {
    if (node->kind() != prim::Constant || !node->hasAttribute(attr::value) ||
        node->kindOf(attr::value) != torch::jit::AttributeKind::t || !node->t(attr::value).defined()) {
      return;
    }
    const at::Tensor original = node->t(attr::value);
    if (isHeldOnce(original)) {
      return;
    }
    at::Tensor& copy = copies[original.unsafeGetTensorImpl()];
    copy = copy.defined() ? copy : original.detach().clone();
    node->t_(attr::value, copy);
  });
}

} // namespace jit_passes
