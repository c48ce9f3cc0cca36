// Modules that the passes make.
#pragma once

#include "attributes.h"

namespace jit_passes JIT_PASSES_API {

// Whether a rebuilt module keeps an attribute. `owner` is the module, or a module below it.
using KeepAttribute = std::function<bool(const c10::ivalue::Object& owner, const std::string& name)>;

enum class Values { Shared, Copied };

using Methods = std::vector<std::pair<std::string, std::shared_ptr<Graph>>>;

// A module whose methods have these graphs, and with the attributes to keep. Its types and graphs are freed with it.
// PyTorch's Module::clone puts them into the compilation unit of the original, where they stay.
Module rebuildModule(
    const Module& original, const Methods& methods, const KeepAttribute& keep, Values values);

// A copy with inlined graphs for all methods, whose attributes share the tensors of the original. Modules below it
// hold attributes only. If a method picks modules to call at run time, the result is PyTorch's clone, with these
// calls.
Module cloneModule(const Module& original);
// A copy with only this method.
Module cloneModule(const Module& original, const std::string& method);

// The method's graph, inlined. If the method calls nothing, it is the module's own graph rather than a copy.
std::shared_ptr<Graph> inlinedGraph(const Module& module, const std::string& method);

// Path and report of each module with a report that the method calls.
std::vector<std::pair<std::string, std::string>> reportsOfParts(
    const Module& module, const std::string& method);

// Sets all attributes to those of the copy, apart from the paths in `kept`.
void restoreState(const Module& module, const Module& copy, const std::unordered_set<std::string>& kept);

// Gives constants memory of their own. Freezing makes constants that share the memory of the caller's parameters, so
// a finished model would change when the caller trains on.
void copyConstants(Graph& graph);

// The content of the attribute that the value is read from: %w = %self.conv.weight.
std::optional<c10::IValue> attributeOf(const Module& self, const Value* value);

// "conv.weight" for a value that is read from self; "" for self itself.
std::string attributePath(const Value* value);

// The names of attributes that the graph assigns to; and whether the path of a value contains one of these names.
std::unordered_set<std::string> assignedAttributes(Graph& graph);
bool passesThrough(const Value* value, const std::unordered_set<std::string>& attributes);

// Adds a parameter or buffer to the module at `path`; or to the root, if there is no module or it shares its type
// with other modules. A name that is taken becomes name_1, name_2, ... Returns the path of the attribute.
std::string addTensorAttribute(
    Module& root, const std::string& path, const std::string& name, const at::Tensor& tensor, bool parameter);
// Reads the attribute at a path from self, in front of a node.
Value* readAttribute(Graph& graph, Node* before, const std::string& path);
// Reads a switch of the module, which is a bool buffer of that name. A missing one is added.
Value* readSwitch(Module& root, Graph& graph, Node* before, const std::string& name, bool initially);

} // namespace jit_passes JIT_PASSES_API
