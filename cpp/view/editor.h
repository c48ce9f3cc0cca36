// Edits a graph for passes written in Python, through numbers instead of pointers: a number of a destroyed node or
// value is an error, never an access to freed memory.
#pragma once

#include "facts/tensor_facts.h"
#include "graph/registry.h"
#include "snapshot.h"

namespace jit_passes {

class Editor {
 public:
  static constexpr int64_t kEnd = -1; // as `before`: at the end of the graph

  explicit Editor(PassContext& context);

  bool hasModule() const;
  const Snapshot& snapshot() const { return snapshot_; } // before the first edit
  Snapshot fresh() const { return takeSnapshot(context().graph()); }
  // Of the graph as it is now.
  std::unordered_map<int64_t, TensorFacts> facts() const { return tensorFacts(context()); }

  // A new node in front of `before`, with the metadata of `like`: its record, the records of its results, and its
  // number.
  struct Inserted {
    NodeRecord node;
    std::vector<ValueRecord> values;
    int64_t index;
  };
  Inserted insert(const std::string& kind, const std::vector<int64_t>& inputs, int64_t before, int64_t like);
  Inserted insertConstant(const c10::IValue& value, int64_t before);
  // Inserts nodes that read self's attribute at this path.
  Inserted insertAttribute(const std::string& path, int64_t before);
  // Adds a tensor to the module that the node `like` belongs to; returns the attribute's path.
  std::string addAttribute(const std::string& name, const at::Tensor& tensor, bool parameter, int64_t like);

  void setOperand(int64_t node, int64_t operand, int64_t value);
  // Replaces all uses, as results of blocks and of the method too.
  void replaceUses(int64_t value, int64_t replacement);
  // Removes a node whose results have no uses. Returns the numbers of all nodes that are gone, in its blocks too,
  // and the values that were results of these blocks.
  struct Removed {
    std::vector<int64_t> nodes;
    std::vector<int64_t> results;
  };
  Removed remove(int64_t node);
  // Ends the use of the editor, since its graph may be freed. Later calls raise an error.
  void close() { open_ = false; }

 private:
  void checkOpen() const;
  PassContext& context() const;
  Node* node(int64_t index) const;
  Node* placeOf(int64_t before) const;
  Value* value(int64_t id) const;
  Inserted adopt(Node* node, const Node* like);
  void own(Node* node);
  void forget(const Node* node, std::vector<int64_t>& gone, std::unordered_set<int64_t>& results);

  PassContext& context_;
  std::shared_ptr<Graph> graph_;
  Snapshot snapshot_;
  std::vector<Node*> nodes_; // null once removed
  std::unordered_map<const Node*, int64_t> indices_;
  std::unordered_map<int64_t, Value*> values_;
  bool open_ = true;
};

} // namespace jit_passes
