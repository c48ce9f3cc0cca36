// Which values may share memory, in a graph that is being edited.
#pragma once

#include "module.h"

namespace jit_passes JIT_PASSES_API {

// The operator that each name of a rule's pattern stands for.
using Kinds = std::unordered_map<c10::Symbol, c10::Symbol>;

// Classes of values that may share memory, according to the operators' schemas. The analysis is coarser than
// PyTorch's, but takes linear time, and stays true while the graph is edited.
class AliasClasses {
 public:
  // Whether the graph's inputs may share memory with each other: arguments of a method may, inputs of a replacement
  // not.
  enum class Inputs { MayAlias, Distinct };

  // ByName: attributes of equal name may share memory. Any: all attributes and all inputs may.
  enum class Attributes { ByName, Any };

  // If `self` is given, attributes whose tensors share memory are in one class.
  explicit AliasClasses(
      Graph& graph, const Module* self = nullptr, Attributes attributes = Attributes::ByName);
  AliasClasses(Graph& graph, Inputs inputs, const Kinds& kinds);

  void add(Node* node);    // with its blocks; all in front of it have been added
  void remove(Node* node); // before it is destroyed

  // To be called before uses of `old` become uses of `replacement`: nodes that write to `old` then write to
  // `replacement`.
  void replace(const Value* old, const Value* replacement);

  bool mayAlias(const Value* a, const Value* b);
  // Nodes that may write to the memory of the value or of its contents.
  std::vector<Node*> writersOf(const Value* value);
  // Whether there is one. An observed graph has a writer for each of its values, so a list for each is quadratic.
  bool isWritten(const Value* value);
  // Whether no other node can observe a write of these nodes to the value's memory: all other values of its class
  // come after `point`, or are read by these nodes only.
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
  // Whether `found` holds for a writer; it is asked for one after the other until then.
  template <class Found>
  bool findWriter(const Value* value, const Found& found);

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
