// Operators that are inserted at places, as Python asks for them: by name, checked against their schemas.
#pragma once

#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {

// A value, and the uses of it that an annotation is about; none for all of them.
struct AnnotatedValue {
  Value* value;
  std::vector<Use> uses;
};

// One operator to insert; from a dict with these keys.
struct Insertion {
  AnnotatedValue annotated;          // "value", and "uses" of it
  const Node* home;                  // "home": the node that the place belongs to, or null
  c10::Symbol kind;                  // "op"
  const c10::FunctionSchema* schema; // of it
  std::unordered_map<std::string, c10::IValue> operands; // "operands": by argument, but for the first
  std::string name;                                      // of the place: the operand "name"
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
// parameter). It belongs to the module that the node was written in, so each submodule needs a type of its
// own, as _C.clone gives it; for None, to the root. A further one of that name (a module that is called
// twice) gets a number; one whose module is gone, as in frozen models, goes to the root, its path in front.
class Insertions {
 public:
  // Finds what the options refer to, and registers the states.
  explicit Insertions(PassContext& context);

  const std::vector<Insertion>& all() const { return all_; }
  // The node in front of which to insert: the first of the uses, or if they are all meant, what follows the
  // node that makes the value. Behind all constants, whose order other passes may rely on.
  Node* nodeFor(const Insertion& insertion) const;
  // Inserts the operator, with the value as its first operand.
  Node* insert(const Insertion& insertion, Value* value, Node* before, const Node* like);

 private:
  Insertion read(const c10::IValue& packed) const;
  // By its unique() in the snapshot, and uses packed as a list of (node index, operand).
  AnnotatedValue find(int64_t value, const c10::IValue& uses) const;
  Value* readState(const c10::IValue& packed);
  Value* operand(const c10::IValue& what, Node* before);
  Value* shared(const std::string& role);
  Value* attribute(const std::string& name, const c10::IValue& initially);

  PassContext& context_;
  std::shared_ptr<Graph> graph_;
  std::vector<Node*> nodes_; // by their numbers in the snapshot
  std::unordered_map<int64_t, Value*> values_;
  Node* start_; // what is read from modules is read in front of it
  std::vector<Insertion> all_;
  std::vector<Value*> states_;
  std::unordered_map<std::string, Value*> shared_;
};

} // namespace jit_passes
