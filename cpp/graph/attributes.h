// Attributes of modules by name, in constant time. PyTorch searches all names of a type one after the other, and the
// type of a traced chain of 8,000 convolutions has 8,000 names.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

using torch::jit::Module;

// Position of an attribute in the type, and in its objects.
std::optional<size_t> attributeSlot(const c10::ClassType& type, const std::string& name);

// Value of an attribute; nothing where the object has none of that name.
std::optional<c10::IValue> attributeNamed(const c10::ivalue::Object& object, const std::string& name);

// The names in a path, "layer1.0.conv1".
std::vector<std::string> namesIn(const std::string& path);
// The module or other attribute at a path; nothing if there is none.
std::optional<c10::IValue> attributeAt(const Module& root, const std::string& path);

enum class AttributeRole { Plain, Parameter, Buffer };

// Adds an attribute that the module does not have yet.
void addAttribute(
    const Module& module, const std::string& name, const c10::TypePtr& type, c10::IValue value,
    AttributeRole role = AttributeRole::Plain);

// Reads an attribute of an object, at the graph's insert point.
Value* insertGetAttr(Graph& graph, Value* object, const std::string& name);

} // namespace jit_passes JIT_PASSES_API
