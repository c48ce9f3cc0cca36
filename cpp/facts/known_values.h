// Facts about a graph's values before it runs, beyond constants and types.
#pragma once

#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes JIT_PASSES_API {

// To be made before any edit.
class KnownValues {
 public:
  // `attributes_apart` as in writtenValues.
  explicit KnownValues(const PassContext& context, bool attributes_apart = false);

  // Whether some node may write to the value: see writtenValues.
  bool isWritten(const Value* value) const { return written_.count(value) > 0; }

  // Gives a value the facts about the value that it replaces.
  void inherit(const Value* value, const Value* old);

  // The content of the attribute that the value is read from, of the module or of a module below it. Nothing if the
  // graph assigns to an attribute of that name, or picks the module at run time.
  std::optional<c10::IValue> attribute(const Value* value) const;

  // An attribute that is a tensor or None, if no node writes to it: a weight, or a missing bias. Also the transpose
  // of this matrix.
  std::optional<c10::IValue> parameter(const Value* value) const;

  // The content of a value that changes only if parameters or buffers change: a parameter, or a result of parameters
  // and constants alone, such as the weight of a weight norm. Nothing if the graph writes to any of them.
  std::optional<c10::IValue> fixed(const Value* value) const;

  // The tensor of a constant or of a fixed value.
  std::optional<at::Tensor> tensor(const Value* value) const;

  // Whether the value is None, or an attribute that is None.
  bool isNone(const Value* value) const;

  // The rank of a constant, of an attribute, or of a tensor whose type has it.
  std::optional<int64_t> rank(const Value* tensor) const;

  // The number of elements of a list that no node changes.
  std::optional<int64_t> length(const Value* list) const;

 private:
  void computeFixed() const;
  std::optional<std::vector<c10::IValue>> resultsOf(const Node* node) const;

  std::shared_ptr<Graph> graph_;
  std::optional<torch::jit::Module> module_; // nothing for a graph alone
  std::unordered_set<const Value*> written_;
  std::unordered_set<std::string> assigned_; // names of attributes
  // By the unique numbers of values, since addresses are reused. Found on first use.
  mutable std::optional<std::unordered_map<size_t, c10::IValue>> fixed_;
};

// Whether the node's results follow from its operands alone: it draws no random number, writes nothing, and has no
// effects.
bool isPure(const Node* node);

} // namespace jit_passes JIT_PASSES_API
