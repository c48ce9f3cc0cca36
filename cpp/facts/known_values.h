// Facts about a graph's values before it runs, beyond constants and types.
#pragma once

#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes JIT_PASSES_API {

// Taken once, before any edit.
class KnownValues {
 public:
  // With `attributes_apart`, as in writtenValues.
  explicit KnownValues(const PassContext& context, bool attributes_apart = false);

  // Whether some node may write to it: see writtenValues.
  bool isWritten(const Value* value) const { return written_.count(value) > 0; }

  // Says that a new value took the place of an old one.
  void inherit(const Value* value, const Value* old);

  // The content of the attribute that the value is read from, of the module or of one below it. Nothing
  // where the graph assigns to an attribute of that name, or picks the module while it runs.
  std::optional<c10::IValue> attribute(const Value* value) const;

  // The same for tensors and None that nothing writes to: a weight, or the bias that is not there; and what
  // is such a matrix transposed.
  std::optional<c10::IValue> parameter(const Value* value) const;

  // The number or tensor that a value is while parameters and buffers stay as they are: a parameter, or a result of
  // parameters and constants alone, as the weight of a weight norm. Nothing where the graph writes to any of them.
  std::optional<c10::IValue> fixed(const Value* value) const;

  // A constant, or a fixed value.
  std::optional<at::Tensor> tensor(const Value* value) const;

  // Whether it is None, or an attribute that is.
  bool isNone(const Value* value) const;

  // The number of dimensions of a tensor: a constant, an attribute, or by its type.
  std::optional<int64_t> rank(const Value* tensor) const;

  // The number of elements of a list, if nobody changes it.
  std::optional<int64_t> length(const Value* list) const;

 private:
  void computeFixed() const;
  std::optional<std::vector<c10::IValue>> resultsOf(const Node* node) const;

  std::shared_ptr<Graph> graph_;
  std::optional<torch::jit::Module> module_; // nothing for a graph alone
  std::unordered_set<const Value*> written_;
  std::unordered_set<std::string> assigned_; // names of attributes
  // By the numbers of values, which are not given twice. Nothing before someone asks.
  mutable std::optional<std::unordered_map<size_t, c10::IValue>> fixed_;
};

// Whether what a node gives follows from its operands alone: it draws no number, writes nothing, and has no effect.
bool isPure(const Node* node);

} // namespace jit_passes JIT_PASSES_API
