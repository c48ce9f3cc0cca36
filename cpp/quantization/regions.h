// Regions: operators of one block that can be computed as one, since no path leaves them and comes back.
#pragma once

#include "graph/graph.h"

namespace jit_passes JIT_PASSES_API {

// The order that a graph's nodes have to keep: found once, before any edit. Nodes that are added later are free.
class Order {
 public:
  explicit Order(const std::shared_ptr<Graph>& graph);

  // Whether the node keeps its place among others of which this holds: it writes, reads what is written, prints,
  // draws random numbers, or contains what does. Such a node belongs to no region.
  bool isFixed(const Node* node) const { return fixed_.count(node) > 0; }
  // Whether each region that reads the node has one of its own: constants, quantize and dequantize, lists of
  // tensors, sizes and what is computed of them, constants that are repeated. No path leaves a region through them.
  bool isCopied(const Node* node) const;
  // The nodes of the same block that make what a node reads, those behind what is copied.
  std::vector<Node*> sourcesOf(Node* node) const;
  // Visits the nodes of a block from the first to the last, with those of the block that each comes after.
  using Visit = std::function<void(Node* node, const std::vector<Node*>& before)>;
  void visit(Node* first, const Node* last, const Visit& visit) const;

 private:
  std::unordered_set<const Node*> fixed_;
};

// Operators that are taken or left as a whole: the nodes of each, in one block.
using Units = std::vector<std::vector<Node*>>;
// Pairs of units, by number, that belong together if that is possible; for each unit, the first pair first.
using Links = std::vector<std::pair<size_t, size_t>>;

// The number of each unit's region, counted from 0 in program order; -1 where there cannot be one. Units join one
// after the other, in program order, so that no region can be made larger by a further one of its units' links.
std::vector<int64_t> findRegions(const std::shared_ptr<Graph>& graph, const Units& units, const Links& links);

} // namespace jit_passes JIT_PASSES_API
