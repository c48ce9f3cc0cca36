// Nodes of a region that a plan computes as one operator.
//
// Python decides it, in jit_passes/quantizers/joined.py, and the region tells it: no quantize stands between these
// nodes. The functions here read that from the region, and hold the facts about plans that Python asks for.
#pragma once

#include "graph/module.h"
#include "reader.h"

namespace jit_passes::x86 {

// Whether all readers of the value quantize it in its block, perhaps after clips and moves. The operator that makes
// it then rounds once, at the end.
bool isQuantizedLater(const Value* value);

// Kinds of PyTorch's layers that add another value to their products before they round.
std::vector<std::string> summedKinds();
// Whether such a sum, in the block of the node, is the only reader of a layer's result.
bool isSummed(const Node* node, const Operator& layer);

// Whether the reader takes the operands of a concatenation in place of its result, each with a grid of its own: batch
// norms and concatenations take those of a concatenation of channels.
bool takesParts(const Node* reader, const Node* maker);
// Whether all readers of the node take its operands. Its result is never rounded as a whole.
bool isReadInParts(const Node* node);
// The concatenations whose operands a node takes, all by their numbers in program order.
std::map<int64_t, std::vector<int64_t>> partsTaken(
    const torch::jit::Module& module, const std::string& method);

} // namespace jit_passes::x86
