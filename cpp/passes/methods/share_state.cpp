// Move state that several methods have in common into one module.
//
// Each quantized method is a module of its own, which the joined module calls. State that one method changes and
// another uses, such as a stream's state and its reset, moves into a further module, which all methods hold:
//
//   graph(%self):                                            graph(%self):
//     %state : Tensor = prim::GetAttr[name="state"](%self)     %common = prim::GetAttr[name="common_state"](%self)
//                                                       ->     %state : Tensor = prim::GetAttr[name="state"](%common)
//
// There, attributes have the paths that they had in the original module.
#include "methods.h"

namespace jit_passes {
namespace {

using Used = std::map<Attribute, std::string>;

Memory memoryOf(const c10::IValue& value) {
  Memory memory;
  addMemory(value, memory);
  return memory;
}

// Adds attributes that share memory with those in `attributes`, until there are no more.
void addAliases(Used& attributes, const std::map<std::string, MethodState>& states) {
  for (size_t before = 0; before != attributes.size();) {
    before = attributes.size();
    Memory memory;
    for (const auto& [attribute, path] : attributes) {
      addMemory(attribute.value(), memory);
    }
    for (const auto& [method, state] : states) {
      for (const auto& [attribute, path] : state.used) {
        const auto value = attribute.value();
        if (!value.isModule() &&
            std::ranges::any_of(memoryOf(value), [&](const auto& part) { return memory.count(part) > 0; })) {
          attributes.emplace(attribute, path);
        }
      }
    }
  }
}

bool accesses(const Node* node) { return node->kind() == prim::GetAttr || node->kind() == prim::SetAttr; }

// Whether a forked branch uses an attribute with one of these names.
bool usesInFork(Graph& graph, const std::unordered_set<std::string>& names) {
  bool found = false;
  forEachNode(graph, [&](Node* node) {
    if (node->kind() == prim::fork) {
      auto& branch = *node->g(attr::Subgraph);
      forEachNode(
          branch, [&](Node* inner) { found |= accesses(inner) && names.count(inner->s(attr::name)) > 0; });
      found |= usesInFork(branch, names);
    }
  });
  return found;
}

// A module with these attributes at their paths, and with the modules on the way to them.
Module holderOf(const Module& original, const Used& attributes) {
  std::unordered_set<const c10::ivalue::Object*> owners;
  for (const auto& [attribute, path] : attributes) {
    owners.insert(attribute.owner);
  }
  const auto leads_to_owner = [&](const Module& module) {
    bool leads = false;
    for (const Module& inner : module.modules()) {
      leads |= owners.count(inner._ivalue().get()) > 0;
    }
    return leads;
  };
  const auto keep = [&](const c10::ivalue::Object& owner, const std::string& name) {
    const auto value = attributeNamed(owner, name).value();
    return value.isModule() ? leads_to_owner(value.toModule()) : attributes.count({&owner, name}) > 0;
  };
  return rebuildModule(original, {}, keep, Values::Copied);
}

// Makes the graph access these attributes through `holder`, which has them at their paths in the original.
void moveAccesses(const Module& original, Graph& graph, const std::string& holder, const Used& attributes) {
  std::vector<std::pair<Node*, std::string>> moved;
  forEachNode(graph, [&](Node* node) {
    if (accesses(node)) {
      const auto path = attributePath(objectOf(node));
      const auto owner = attributeAt(original, path);
      if (owner && owner->isObject() && attributes.count({owner->toObject().get(), node->s(attr::name)})) {
        moved.emplace_back(node, path.empty() ? holder : holder + "." + path);
      }
    }
  });
  for (const auto& [node, path] : moved) {
    node->replaceInput(0, readAttribute(graph, node, path));
  }
}

void removeAttributes(const Module& module, const Used& attributes) {
  for (const auto& [attribute, path] : attributes) {
    const auto end = path.rfind('.');
    const auto owner = attributeAt(module, end == std::string::npos ? "" : path.substr(0, end));
    if (owner && owner->isObject() && owner->toObjectRef().type()->hasAttribute(attribute.name)) {
      const auto object = owner->toObject();
      const size_t slot = object->type()->getAttributeSlot(attribute.name);
      object->type()->unsafeRemoveAttribute(attribute.name);
      object->unsafeRemoveSlot(slot);
    }
  }
}

} // namespace

std::set<Attribute> attributesAt(const Module& module, const c10::IValue& paths) {
  std::set<Attribute> attributes;
  for (const c10::IValue& each : paths.toListRef()) {
    const auto& path = each.toStringRef();
    const auto end = path.rfind('.');
    const auto owner = attributeAt(module, end == std::string::npos ? "" : path.substr(0, end));
    const auto name = path.substr(end + 1); // npos + 1 is 0
    TORCH_CHECK(
        owner && owner->isObject() && owner->toObjectRef().type()->hasAttribute(name),
        "the module has no attribute '", path, "'");
    attributes.insert({owner->toObject().get(), name});
  }
  return attributes;
}

CommonState commonState(const Module& module, const std::unordered_set<std::string>& quantized) {
  CommonState common;
  std::map<std::string, MethodState> states;
  for (const auto& method : module.get_methods()) {
    auto state = stateOf(module, method.name());
    if (!state) {
      common.opaque = method.name();
      return common;
    }
    states.emplace(method.name(), std::move(*state));
  }
  for (const auto& [writer, state] : states) {
    Memory memory;
    for (const auto& attribute : state.changed) {
      addMemory(attribute.value(), memory);
    }
    for (const auto& [user, other] : states) {
      if (writer == user || quantized.count(writer) + quantized.count(user) == 0) {
        continue;
      }
      for (const auto& [attribute, path] : other.used) {
        const auto value = attribute.value();
        const auto in_memory = [&](const auto& part) { return memory.count(part) > 0; };
        if (!value.isModule() &&
            (state.changed.count(attribute) > 0 || std::ranges::any_of(memoryOf(value), in_memory))) {
          common.attributes.emplace(attribute, path);
        }
      }
    }
  }
  addAliases(common.attributes, states);
  std::unordered_set<std::string> names;
  for (const auto& [attribute, path] : common.attributes) {
    names.insert(attribute.name);
  }
  for (const auto& [method, state] : states) {
    if (usesInFork(*state.graph, names)) {
      common.opaque = method;
    }
  }
  return common;
}

void shareState(
    const Module& original, const CommonState& state, Module& joined,
    const std::vector<std::pair<std::string, Module>>& quantized) {
  if (state.attributes.empty()) {
    return;
  }
  const auto is_taken = [&](const std::string& name) {
    return joined.hasattr(name) ||
           std::ranges::any_of(quantized, [&](const auto& part) { return part.second.hasattr(name); });
  };
  std::string name = "common_state";
  for (int number = 1; is_taken(name); ++number) {
    name = "common_state_" + std::to_string(number);
  }
  const Module holder = holderOf(original, state.attributes);
  joined.register_module(name, holder);
  for (const auto& method : joined.get_methods()) {
    moveAccesses(original, *method.graph(), name, state.attributes);
  }
  removeAttributes(joined, state.attributes);
  for (const auto& [method, module] : quantized) {
    Module part = module;
    const auto used = stateOf(original, method)->used;
    Used own;
    std::ranges::copy_if(state.attributes, std::inserter(own, own.end()), [&](const auto& attribute) {
      return used.count(attribute.first) > 0; // the passes may have added other attributes
    });
    part.register_module(name, holder);
    moveAccesses(original, *part.get_method(method).graph(), name, own);
    removeAttributes(part, own);
  }
}

} // namespace jit_passes
