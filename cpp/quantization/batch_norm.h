// Batch norms that become part of the convolution or linear in front of them.
#pragma once

#include "facts/known_values.h"
#include "facts/shapes.h"
#include "graph/graph.h"
#include "graph/operators.h"

namespace jit_passes {

// The weighted operator whose weight and bias could include a batch norm, as far as the graph alone tells: no other
// node reads the values of its result, and axis 1 of the result is the axis of channels.
struct NormalizedOperator {
  Node* node;
  WeightedOperator kind;
  int64_t groups;

  // The number of output channels. The weight is [out, in / groups, ...], or [in, out / groups, ...] if transposed.
  int64_t channels(const at::Tensor& weight) const {
    return weight.size(outputAxis(kind)) * (kind.transposed ? groups : 1);
  }
};

// Whether the node is aten::batch_norm or a deferred batch norm, which has the operands of aten::batch_norm and
// more.
bool isBatchNorm(const Node* node);
bool isDeferredBatchNorm(const Node* node);

// Replaces a deferred batch norm by aten::batch_norm with its operands.
void replaceDeferred(Node* norm);

// Whether a normalization has running statistics. Without them it uses the statistics of each batch, in eval mode
// too.
bool hasStatistics(const KnownValues& known, const Node* norm);

// Copies the name of a weight, which files and messages show. Does nothing if `original` has no name, such as None.
void copyName(Value* folded, const Value* original);
// Names a bias without a name after its weight: "conv.bias" for "conv.weight".
void nameBias(Value* bias, const Value* weight);

// The rank of the input of each batch norm, if it is certain. To be found before any edit.
using NormalizedRanks = std::unordered_map<const Node*, std::optional<int64_t>>;
NormalizedRanks normalizedRanks(const PassContext& context);

// With `shapes`, also for a linear layer whose rows the model joins in front of the norm, where x has three axes:
// batch_norm(flatten(linear(x), 0, 1)).
std::optional<NormalizedOperator> normalizedOperator(
    const Node* norm, const NormalizedRanks& ranks, const Shapes* shapes = nullptr);

} // namespace jit_passes
