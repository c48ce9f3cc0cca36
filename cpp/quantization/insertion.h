// Inserts operators at places, on behalf of Python: by name, checked against their schemas.
#pragma once

#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {

// A value, and the uses of it that an annotation concerns. An empty list means all uses.
struct AnnotatedValue {
  Value* value;
  std::vector<Use> uses;
};

// An operator to insert, from a dict of Python. The comments name its keys.
struct Insertion {
  AnnotatedValue annotated;          // "value" and "uses"
  const Node* home;                  // "home": the node that the place belongs to, or null
  c10::Symbol kind;                  // "op"
  const c10::FunctionSchema* schema; // the operator's
  std::unordered_map<std::string, c10::IValue> operands; // "operands": by argument, without the first
  std::string name;                                      // the operand "name": the place's name
};

// The options `places` and `states` of a pass that inserts. An operand is a constant, or a tuple:
//
//   ("state", i)           the i-th of the option `states`: a scale, threshold, range or histogram
//   ("value", id)          a value of the graph, by its unique() in the snapshot
//   ("corrections",)       the buffer scale_corrections of the module, which counts
//   ("observe",)           whether the module trains and its switch observer_enabled is on
//   ("enabled",)           its switch fake_quantize_enabled
//   ("group",)             its attribute process_group
//   ("fold", node, axis)   jit_passes::fold_factor of that batch norm, along that axis of the value, as
//                          deferred_weight gives it, which gives the value too
//
// An argument that is not given has the schema's default. A state is (name, node, tensor, whether it is a
// parameter). A state belongs to the module that the node was written in, so each submodule needs a type of its own,
// as _C.clone gives it. If the node is None, the state belongs to the root. A second state of equal name (for a
// module that is called twice) gets a number. If its module is gone, as in frozen models, the state goes to the
// root, with the path in its name.
class Insertions {
 public:
  // Finds the values and nodes that the options name, and registers the states.
  explicit Insertions(PassContext& context);

  const std::vector<Insertion>& all() const { return all_; }
  // The new operator goes in front of this node: the first of the uses; or, for all uses, the node after the one
  // that makes the value. The node comes after all constants, since other passes may rely on their order.
  Node* nodeFor(const Insertion& insertion) const;
  // Inserts the operator, with the value as its first operand.
  Node* insert(const Insertion& insertion, Value* value, Node* before, const Node* like);

 private:
  Insertion read(const c10::IValue& packed) const;
  // A value by its unique() in the snapshot, with uses given as a list of (node index, operand).
  AnnotatedValue find(int64_t value, const c10::IValue& uses) const;
  Value* readState(const c10::IValue& packed);
  Value* operand(const c10::IValue& what, Node* before);
  Value* shared(const std::string& role);
  Value* attribute(const std::string& name, const c10::IValue& initially);

  PassContext& context_;
  std::shared_ptr<Graph> graph_;
  std::vector<Node*> nodes_; // by their numbers in the snapshot
  std::unordered_map<int64_t, Value*> values_;
  Node* start_; // reads of attributes are inserted in front of it
  std::vector<Insertion> all_;
  std::vector<Value*> states_;
  std::unordered_map<std::string, Value*> shared_;
};

} // namespace jit_passes
