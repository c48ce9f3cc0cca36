// The number of axes of each tensor in a graph, from the node that makes it and the nodes that read it.
//
//   %h = aten::embedding(%table, %tokens)        one axis at least, as the tokens may be one number
//   %y = aten::linear(%h, %weight)
//   %t = aten::transpose(%y, 1, 2)               three at least: %h has the first two axes of %tokens
#pragma once

#include "known_values.h"
#include "size_facts.h"

namespace jit_passes {

// Whether images have a batch axis where the graph does not say so.
enum class Images { Batched, Single, Unknown };

// The ranges of one graph's tensors. Ranges only become narrower.
class Ranks final : public AxisFacts {
 public:
  // `shapes` finds sizes from these ranks, and these ranks need its lists of sizes and axes of size 1.
  Ranks(Graph& graph, const KnownValues& known, const SizeFacts& shapes);

  // Finds all ranges. Results for which the graph does not tell are as `images` says.
  void settle(Images images);

  AxisRange axes(const Value* tensor) const override;
  std::optional<int64_t> length(const Value* list) const override;
  bool squeezes(const Node* squeeze) const override { return squeezing_.count(squeeze) > 0; }

 private:
  void propagate();
  // Whether sizes found with the present ranks give further ranks.
  bool askSizes();
  AxisRange made(const Value* tensor) const;
  // The values of which a result of a branch or loop is one.
  std::vector<const Value*> carriedBy(const Node* node, size_t result) const;
  // The smallest range that holds the ranges of all of them.
  AxisRange anyOf(const std::vector<const Value*>& tensors) const;
  void read(const Node* node);
  void demand(const Node* reader, const Value* tensor, const AxisRange& range);
  void narrow(const Value* tensor, const AxisRange& range);

  const KnownValues& known_;
  const SizeFacts& shapes_;
  std::vector<Node*> nodes_; // in program order
  std::unordered_map<const Value*, AxisRange> ranges_;
  std::unordered_map<const Value*, int64_t> lengths_; // of lists whose length is not in the graph
  std::unordered_set<const Node*> squeezing_;
  bool changed_ = false;
  Images assumed_ = Images::Unknown;
};

} // namespace jit_passes
