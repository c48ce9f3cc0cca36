// Batch norms that become part of the convolution or linear in front of them.
#pragma once

#include "facts/known_values.h"
#include "facts/shapes.h"
#include "graph/graph.h"
#include "graph/operators.h"

namespace jit_passes {

// The weighted operator whose weight and bias could take a batch norm over, as far as the graph alone
// tells: nothing else sees its result's values, and axis 1 of these is that of its channels.
struct NormalizedOperator {
  Node* node;
  WeightedOperator kind;
  int64_t groups;

  // As many as the weight makes, which is [out, in / groups, ...], or [in, out / groups, ...] transposed.
  int64_t channels(const at::Tensor& weight) const {
    return weight.size(outputAxis(kind)) * (kind.transposed ? groups : 1);
  }
};

// Whether the node is aten::batch_norm, or one that is deferred: that has the same operands, and more.
bool isBatchNorm(const Node* node);
bool isDeferredBatchNorm(const Node* node);

// aten::batch_norm with the operands of one that is deferred, in its place.
void replaceDeferred(Node* norm);

// Whether a normalization has running statistics. One without normalizes by each batch in use too.
bool hasStatistics(const KnownValues& known, const Node* norm);

// Files and messages have names of weights from there. Nothing without a name of its own, as for None.
void copyName(Value* folded, const Value* original);
// "conv.bias" next to "conv.weight", for a tensor that has no name.
void nameBias(Value* bias, const Value* weight);

// The axes of what each batch norm reads, as far as they are certain. Taken before any edit.
using NormalizedRanks = std::unordered_map<const Node*, std::optional<int64_t>>;
NormalizedRanks normalizedRanks(const PassContext& context);

// With `shapes`, that of a linear layer too whose rows the model joins in front of the norm:
// batch_norm(flatten(linear(x), 0, 1)), where x has three axes.
std::optional<NormalizedOperator> normalizedOperator(
    const Node* norm, const NormalizedRanks& ranks, const Shapes* shapes = nullptr);

} // namespace jit_passes
