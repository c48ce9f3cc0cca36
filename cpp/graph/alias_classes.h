// Which values may share memory, in a graph that is being edited.
#pragma once

#include "module.h"

namespace jit_passes JIT_PASSES_API {

// The operator that each name of a rule's pattern stands for.
using Kinds = std::unordered_map<c10::Symbol, c10::Symbol>;

// Values in classes that may share memory, by what the operators' schemas say. Coarser than PyTorch's
// analysis, but linear, and it follows a graph while that is edited.
class AliasClasses {
 public:
  // Arguments of a method may be views of each other, those of a rule's replacement are told apart.
  enum class Inputs { MayAlias, Distinct };

  // Attributes of one name count as one; or all of them, which may share memory with what comes in, too.
  enum class Attributes { ByName, Any };

  // With the module, attributes whose tensors share memory count as one.
  explicit AliasClasses(
      Graph& graph, const Module* self = nullptr, Attributes attributes = Attributes::ByName);
  AliasClasses(Graph& graph, Inputs inputs, const Kinds& kinds);

  void add(Node* node);    // with its blocks; all in front of it have been added
  void remove(Node* node); // before it is destroyed

  // The users of one value are about to use the other: its writers write to that from now on.
  void replace(const Value* old, const Value* replacement);

  bool mayAlias(const Value* a, const Value* b);
  // Nodes that may write to the memory of the value, or of what it contains.
  std::vector<Node*> writersOf(const Value* value);
  // Whether only these nodes use memory of the value's class, and in front of `point` also what they make
  // of it: then nobody sees whether they write to it.
  bool onlyWithin(const Value* value, const std::unordered_set<const Node*>& nodes, const Node* point);

 private:
  void addAll(Graph& graph, Inputs inputs);
  void addAttribute(Node* node);
  void addByName(Node* node, c10::Symbol kind);
  void uniteWithContents(const Value* value, const Value* operand);
  size_t classOf(const Value* value);
  size_t find(size_t index);
  void unite(size_t a, size_t b);
  void addBySchema(Node* node, const c10::FunctionSchema& schema);
  void collect(size_t index, std::unordered_set<size_t>& seen);

  struct Class {
    size_t parent;
    std::vector<Node*> writers;
    std::vector<const Value*> values;
    std::vector<size_t> contents; // of a list, tuple or dict
    bool outside = false;         // an argument, an attribute, a constant
  };
  std::vector<Class> classes_;
  std::unordered_map<const Value*, size_t> indices_;
  std::unordered_map<std::string, size_t> attributes_;
  std::unordered_map<const c10::StorageImpl*, size_t> storages_; // of attributes
  std::optional<Module> self_;
  Attributes attribute_rule_ = Attributes::ByName;
  Kinds kinds_;
};

} // namespace jit_passes JIT_PASSES_API
