// Regions: operators of one block that can be computed as one node, since no path leaves the region and comes back.
#pragma once

#include "graph/graph.h"

namespace jit_passes JIT_PASSES_API {

// The order that a graph's nodes must keep. The order is found once, before any edit; nodes that are added later may
// move.
class Order {
 public:
  explicit Order(const std::shared_ptr<Graph>& graph);

  // Whether the node must keep its order among all fixed nodes: it writes to memory, reads written memory, prints,
  // draws random numbers, or contains a node that does. A fixed node belongs to no region.
  bool isFixed(const Node* node) const { return fixed_.count(node) > 0; }
  // Whether each region that reads the node gets a copy of it: constants, quantize and dequantize, lists of tensors,
  // sizes and numbers computed from sizes, repeated constants. No path leaves a region through these nodes.
  bool isCopied(const Node* node) const;
  // Whether the node reads a size that must keep its order. A region takes tensors, so the node belongs to none.
  bool readsFixedSize(const Node* node) const;
  // The nodes of the block that the node reads. A copied node is replaced by the nodes that it reads.
  std::vector<Node*> sourcesOf(Node* node) const;
  // Visits the nodes of a block from `first` to `last`, each with the nodes of the block that must come before it.
  using Visit = std::function<void(Node* node, const std::vector<Node*>& before)>;
  void visit(Node* first, const Node* last, const Visit& visit) const;

 private:
  std::unordered_set<const Node*> fixed_;
};

// Units of operators that a region takes as a whole or not at all. The nodes of a unit are in one block.
using Units = std::vector<std::vector<Node*>>;
// Pairs of units, by number, that should be in one region if that is possible. Earlier pairs come first.
using Links = std::vector<std::pair<size_t, size_t>>;

// The number of each unit's region, counted from 0 in program order; -1 for a unit that can be in no region. Units
// join along the links, in program order, until no link can make a region larger.
std::vector<int64_t> findRegions(const std::shared_ptr<Graph>& graph, const Units& units, const Links& links);

} // namespace jit_passes JIT_PASSES_API
