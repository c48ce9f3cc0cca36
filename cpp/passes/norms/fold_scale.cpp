// Fold a multiplication by a constant for each channel into the convolution or linear before it.
//
//   %y = aten::linear(%x, %w, %b)
//   %z = aten::permute(%y, [0, 3, 1, 2])               %y = aten::linear(%x, %w * %c, %b * %c)
//   %s = aten::mul(%c, %z)                        ->   %s = aten::permute(%y, [0, 3, 1, 2])
//
// The multiplication must be the only node that uses the result's values. An earlier pass removes dropout that is
// off.
#include "graph/alias.h"
#include "graph/graph.h"
#include "graph/operators.h"
#include "graph/registry.h"
#include "quantization/batch_norm.h"

namespace jit_passes {
namespace {

// An operator with weights, and the axis of its channels in the permuted result, counted from the end.
struct Scaled {
  Node* node;
  int64_t axis;
};

bool isReadOnce(const Value* value) { return value->uses().size() == 1; }

std::optional<Scaled> scaledOperator(Value* value) {
  std::vector<std::vector<int64_t>> permutations;
  Node* node = value->node();
  for (; node->kind() == aten::permute && isReadOnce(node->output()); node = inputOf(node, "self")->node()) {
    const auto axes = constantInts(node, "dims");
    if (!axes) {
      return std::nullopt;
    }
    permutations.push_back(*axes);
  }
  const auto op = weightedOperator(node);
  if (!op || op->transposed || !isReadOnce(node->output())) {
    return std::nullopt;
  }
  int64_t axis = op->spatial_dims == 0 ? -1 : -op->spatial_dims - 1;
  for (auto axes = permutations.rbegin(); axes != permutations.rend(); ++axes) {
    const auto rank = static_cast<int64_t>(axes->size());
    const auto found = std::find_if(
        axes->begin(), axes->end(), [&](int64_t from) { return (from < 0 ? from : from - rank) == axis; });
    if (found == axes->end()) {
      return std::nullopt;
    }
    axis = found - axes->begin() - rank;
  }
  return Scaled{node, axis};
}

// Whether a factor has one number for each channel, and size 1 along all other axes.
bool isOfChannels(const at::Tensor& factor, int64_t channels, int64_t axis) {
  return factor.is_floating_point() && factor.dim() == -axis && factor.numel() == channels &&
         factor.size(0) == channels;
}

bool foldFactor(Node* product) {
  for (const size_t operand : {0, 1}) {
    const auto factor = constantTensor(product->input(operand));
    const auto scaled = factor ? scaledOperator(product->input(1 - operand)) : std::nullopt;
    if (!scaled) {
      continue;
    }
    Node* node = scaled->node;
    const auto weight = constantTensor(node, "weight"), bias = constantTensor(node, "bias");
    const auto rank = weightedOperator(node)->spatial_dims + 2; // a vector as weight gives no channels
    if (!weight || weight->dim() != rank || weight->scalar_type() != factor->scalar_type() ||
        (!bias && !isNone(node, "bias")) || !isOfChannels(*factor, weight->size(0), scaled->axis)) {
      continue;
    }
    std::vector<int64_t> shape(weight->dim(), 1);
    shape[0] = -1;
    Value* constant = insertConstant(node, *weight * factor->reshape(shape));
    copyName(constant, inputOf(node, "weight"));
    node->replaceInput(1, constant);
    if (bias) {
      Value* folded = insertConstant(node, *bias * factor->flatten());
      copyName(folded, inputOf(node, "bias"));
      node->replaceInput(2, folded);
    }
    replaceNode(product, product->input(1 - operand));
    return true;
  }
  return false;
}

bool foldScale(PassContext& context) {
  const auto written = writtenValues(context.graph());
  return changeNodes(*context.graph(), [&](Node* node) {
    return node->kind() == aten::mul && !written.count(node->output()) && foldFactor(node);
  });
}

const RegisterPass fold_scale_pass{
    "fold_scale", "Fold a factor for each channel into conv and linear.", foldScale, needs("inlined")};

} // namespace
} // namespace jit_passes
