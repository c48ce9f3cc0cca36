// Fold batch normalization with constant statistics into the convolution or linear before it.
//
//   factor = gamma / sqrt(running_var + eps)
//   weight' = weight * factor          bias' = (bias - running_mean) * factor + beta
//
// along the output channels; factor and bias are computed in double. Only where the normalization
// alone uses the result's values, so a convolution that feeds two of them keeps both.
#include "core/graph.h"
#include "core/operators.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

struct Statistics {
  at::Tensor factor;
  at::Tensor shift; // added after the multiplication, for a bias of 0
};

// aten::batch_norm(x, gamma?, beta?, mean?, var?, training, momentum, eps, cudnn)
std::optional<Statistics> constantStatistics(const Node* node) {
  const auto mean = constantTensor(node->input(3)), variance = constantTensor(node->input(4));
  const auto eps = constantNumber(node->input(7));
  if (!mean || !variance || !eps || constantNumber(node->input(5)) != 0.0) {
    return std::nullopt;
  }
  auto factor = (variance->to(at::kDouble) + *eps).rsqrt();
  for (int i : {1, 2}) {
    if (!isNone(node->input(i)) && !constantTensor(node->input(i))) {
      return std::nullopt;
    }
  }
  if (const auto gamma = constantTensor(node->input(1))) {
    factor = factor * gamma->to(at::kDouble);
  }
  auto shift = -mean->to(at::kDouble) * factor;
  if (const auto beta = constantTensor(node->input(2))) {
    shift = shift + beta->to(at::kDouble);
  }
  return Statistics{factor, shift};
}

// Whether the value is a matrix for every input. A batch norm after linear normalizes axis 1,
// which is the feature axis only then.
bool isMatrix(const Value* value) {
  for (const Node* node = value->node(); node->kind() != c10::prim::Param; node = node->input(0)->node()) {
    if (node->kind() == c10::aten::flatten) {
      return constantNumber(node->input(1)) == 1.0 && constantNumber(node->input(2)) == -1.0;
    }
    if (node->kind() == c10::aten::view || node->kind() == c10::aten::reshape) {
      const Node* shape = node->input(1)->node();
      const auto constant = isConstant(node->input(1)) ? torch::jit::toIValue(node->input(1)) : std::nullopt;
      return (shape->kind() == c10::prim::ListConstruct && shape->inputs().size() == 2) ||
             (constant && constant->isIntList() && constant->toIntList().size() == 2);
    }
    const bool keeps_rank = node->kind() == c10::aten::linear || node->kind() == c10::aten::relu ||
                            node->kind() == c10::aten::clamp || node->kind() == c10::aten::batch_norm;
    if (!keeps_rank) {
      return false;
    }
  }
  return false;
}

// The factor in the shape of the weight: [out, in/groups, ...], transposed [in, out/groups, ...].
at::Tensor scaleWeight(
    const at::Tensor& weight, const at::Tensor& factor, const WeightedOperator& op, int64_t groups) {
  const auto narrow = factor.to(weight.scalar_type()); // one rounding, then one for each product
  if (!op.transposed) {
    std::vector<int64_t> shape(weight.dim(), 1);
    shape[0] = -1;
    return weight * narrow.view(shape);
  }
  const auto grouped = weight.reshape({groups, weight.size(0) / groups, weight.size(1), -1});
  return (grouped * narrow.view({groups, 1, weight.size(1), 1})).reshape(weight.sizes());
}

std::optional<int64_t> groupsOf(const Node* node, const WeightedOperator& op) {
  if (op.spatial_dims == 0) {
    return 1;
  }
  const auto groups = constantNumber(node->input(6)); // both orders of operands have it there
  return groups ? std::optional<int64_t>(*groups) : std::nullopt;
}

// The shape stays what it was, so asking for it is no use of the values: scripted modules check the
// rank of what they get.
bool alone(const Node* norm, const Value* result) {
  return std::all_of(result->uses().begin(), result->uses().end(), [&](const torch::jit::Use& use) {
    return use.user == norm || asksForShape(use.user);
  });
}

bool foldInto(Node* producer, Node* norm) {
  const auto op = weightedOperator(producer);
  if (!op || !alone(norm, producer->output()) || producer->owningBlock() != norm->owningBlock() ||
      (op->spatial_dims == 0 && !isMatrix(producer->output()))) {
    return false;
  }
  const auto statistics = constantStatistics(norm);
  const auto weight = constantTensor(producer->input(1));
  const auto bias = constantTensor(producer->input(2));
  const auto groups = groupsOf(producer, *op);
  if (!statistics || !weight || !weight->is_floating_point() || !groups ||
      (!bias && !isNone(producer->input(2)))) {
    return false;
  }
  const int64_t channels = weight->size(outputAxis(*op)) * (op->transposed ? *groups : 1);
  if (statistics->factor.numel() != channels) {
    return false;
  }
  auto shift = statistics->shift;
  if (bias) {
    shift = shift + bias->to(at::kDouble) * statistics->factor;
  }
  const auto dtype = weight->scalar_type();
  const auto folded = scaleWeight(*weight, statistics->factor, *op, *groups).to(dtype);
  producer->replaceInput(1, insertConstant(producer, folded.contiguous(weight->suggest_memory_format())));
  producer->replaceInput(2, insertConstant(producer, shift.to(dtype)));
  replaceNode(norm, producer->output());
  return true;
}

bool foldBatchNorm(PassContext& context) {
  bool changed = false;
  forEachNode(*context.graph(), [&](Node* node) {
    if (node->kind() == c10::aten::batch_norm) {
      changed |= foldInto(node->input(0)->node(), node);
    }
  });
  return changed;
}

const RegisterPass registration{
    "fold_batch_norm",
    "Fold batch norm with constant statistics into conv and linear.",
    foldBatchNorm,
    {"inlined"}};

} // namespace
} // namespace jit_passes
