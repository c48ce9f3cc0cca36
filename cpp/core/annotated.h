// Nodes and values that a quantizer's annotations refer to, found again in the graph that they were made for.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

// A value, and the uses of it that an annotation is about; none for all of them.
struct AnnotatedValue {
  Value* value;
  std::vector<torch::jit::Use> uses;
};

// Nodes and values of a snapshot by their numbers there. Taken before any edit, and good after edits
// that neither destroy nor replace what annotations refer to.
class AnnotatedGraph {
 public:
  explicit AnnotatedGraph(Graph& graph);

  Node* node(int64_t index) const { return nodes_.at(index); }
  // A value by its unique(), and uses packed as a list of (node index, operand).
  AnnotatedValue find(int64_t value, const c10::IValue& uses) const;

 private:
  std::vector<Node*> nodes_;
  std::unordered_map<int64_t, Value*> values_;
};

// The node in front of which to insert what looks at the value: the first of its uses, or if they are
// all meant, what follows the node that makes it. Behind all constants, whose order other passes may
// rely on.
Node* nodeAfter(const AnnotatedValue& annotated);

} // namespace jit_passes JIT_PASSES_API
