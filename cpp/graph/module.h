// Modules that the passes make.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

using torch::jit::Module;

// Whether a rebuilt module keeps an attribute of that object, the module or one below it.
using KeepAttribute = std::function<bool(const c10::ivalue::Object& owner, const std::string& name)>;

enum class Values { Shared, Copied };

using Methods = std::vector<std::pair<std::string, std::shared_ptr<Graph>>>;

// A module with the methods of these graphs, and the kept attributes. Its types and graphs are freed
// with it; PyTorch's Module::clone puts them where the original's are, and they stay there.
Module rebuildModule(
    const Module& original, const Methods& methods, const KeepAttribute& keep, Values values);

// A module with inlined graphs of its own for all methods; attributes share their tensors. Modules
// below it hold attributes only. Where a method calls modules that it picks at run time, it is
// PyTorch's clone, in which these calls stay.
Module cloneModule(const Module& original);
// The same with one method.
Module cloneModule(const Module& original, const std::string& method);

// The method's graph, inlined: the module's own where it calls nothing.
std::shared_ptr<Graph> inlinedGraph(const Module& module, const std::string& method);

// Gives the graph memory of its own for constants. Freezing makes them of the caller's parameters, whose memory they
// share: a model that is done would change where the caller goes on training.
void copyConstants(Graph& graph);

// The content of self's attribute for a value that is read from it: %w = %self.conv.weight.
std::optional<c10::IValue> attributeOf(const Module& self, const Value* value);

// "conv.weight", where the value is read from self; "" for self.
std::string attributePath(const Value* value);

// The names of attributes that the graph assigns to, and whether a value is read through one of them.
std::unordered_set<std::string> assignedAttributes(Graph& graph);
bool passesThrough(const Value* value, const std::unordered_set<std::string>& attributes);

// Adds a parameter or buffer of that name, or name_1, ... where it is taken, to the module at that
// path; to the root where there is no such module, or one that shares its type with others. Returns the
// path of the attribute.
std::string addTensorAttribute(
    Module& root, const std::string& path, const std::string& name, const at::Tensor& tensor, bool parameter);
// The module or other attribute at a path; nothing where there is none.
std::optional<c10::IValue> attributeAt(const Module& root, const std::string& path);
// Reads the attribute at a path from self, in front of a node.
Value* readAttribute(Graph& graph, Node* before, const std::string& path);
// Reads a switch of the module, a bool buffer of that name, which is added where it is missing.
Value* readSwitch(Module& root, Graph& graph, Node* before, const std::string& name, bool initially);

} // namespace jit_passes JIT_PASSES_API
