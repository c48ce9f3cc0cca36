// Fold batch normalization with constant statistics into the convolution or linear before it.
//
//   factor = gamma / sqrt(running_var + eps)
//   weight' = weight * factor          bias' = (bias - running_mean) * factor + beta
//
// along the output channels; factor and bias are computed in double. Only where the normalization
// alone uses the result's values, so a convolution that feeds two of them keeps both.
//
// What training put around the weight and around the bias, or beta, then is about the folded ones: a
// weight that trained next to a deferred batch norm was quantized as if it were folded.
#include "core/batch_norm.h"
#include "core/observers.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

// What training put around an operand of a node; null where it put nothing there. For this node alone: where
// others read the same, as in a module that is called twice, it gets a copy, which is about what it folds.
Node* trainedAt(Node* user, size_t operand) {
  Node* trained = user->input(operand)->node();
  if (!isTrained(trained)) {
    return nullptr;
  }
  if (trained->output()->uses().size() == 1) {
    return trained;
  }
  Node* copy = user->owningGraph()->createClone(trained, [](Value* value) { return value; });
  copy->insertBefore(user);
  user->replaceInput(operand, copy->output());
  return copy;
}

const Value* within(const Value* value) { return isTrained(value->node()) ? value->node()->input(0) : value; }

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
    if (!isNone(node->input(i)) && !constantTensor(within(node->input(i)))) {
      return std::nullopt;
    }
  }
  if (const auto gamma = constantTensor(node->input(1))) {
    factor = factor * gamma->to(at::kDouble);
  }
  auto shift = -mean->to(at::kDouble) * factor;
  if (const auto beta = constantTensor(within(node->input(2)))) {
    shift = shift + beta->to(at::kDouble);
  }
  return Statistics{factor, shift};
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

// Files and messages have names from there; one that is a number is no name.
void keepName(Value* folded, const Value* original) {
  if (original->hasDebugName()) {
    folded->setDebugName(original->debugName());
  }
}

// "conv.bias" next to "conv.weight", which has it for the first time.
void nameBias(Value* bias, const Value* weight) {
  static const std::string ending = "weight";
  const std::string name = weight->hasDebugName() ? weight->debugName() : "";
  if (name.size() >= ending.size() && name.compare(name.size() - ending.size(), ending.size(), ending) == 0) {
    bias->setDebugName(name.substr(0, name.size() - ending.size()) + "bias");
  }
}

// The same mark, in front of the operator that has the bias now; what it trained with is of no more use.
Value* derived(Node* trained, Value* bias, Node* before) {
  static const auto kind = c10::Symbol::fromQualString("jit_passes::derive_quantization");
  const auto text = [&](const char* operand) {
    return insertConstant(before, *torch::jit::toIValue(operandOf(trained, operand)));
  };
  return insertNode(before, kind, {bias, text("name"), text("spec")}, trained)->output();
}

bool foldInto(Node* norm) {
  const auto op = normalizedOperator(norm);
  if (!op) {
    return false;
  }
  Node* producer = op->node;
  const Node* around_weight = producer->input(1)->node();
  if (isTrained(around_weight) && isNone(operandOf(around_weight, "fold"))) {
    return false; // its codes are those of the weight alone
  }
  const auto statistics = constantStatistics(norm);
  const auto weight = constantTensor(within(producer->input(1)));
  const auto bias = constantTensor(within(producer->input(2)));
  if (!statistics || !weight || !weight->is_floating_point() || (!bias && !isNone(producer->input(2))) ||
      statistics->factor.numel() != op->channels(*weight)) {
    return false;
  }
  auto shift = statistics->shift;
  if (bias) {
    shift = shift + bias->to(at::kDouble) * statistics->factor;
  }
  const auto dtype = weight->scalar_type();
  const auto folded = scaleWeight(*weight, statistics->factor, op->kind, op->groups).to(dtype);
  Node *trained_weight = trainedAt(producer, 1), *trained_bias = trainedAt(producer, 2);
  Node* holder = trained_weight != nullptr ? trained_weight : producer;
  Value* constant = insertConstant(holder, folded.contiguous(weight->suggest_memory_format()));
  keepName(constant, within(producer->input(1)));
  if (trained_weight != nullptr) {
    trained_weight->replaceInput(0, constant);
    trained_weight->replaceInputWith(operandOf(trained_weight, "fold"), insertConstant(holder, {}));
  } else {
    producer->replaceInput(1, constant);
  }
  Value* shifted = insertConstant(producer, shift.to(dtype));
  if (bias) {
    keepName(shifted, within(producer->input(2)));
  } else {
    nameBias(shifted, constant);
  }
  Node* around = trained_bias != nullptr ? trained_bias : trainedAt(norm, 2);
  if (around != nullptr) {
    shifted = derived(around, shifted, producer);
  }
  producer->replaceInput(2, shifted);
  replaceNode(norm, producer->output());
  if (around != nullptr && !around->hasUses()) {
    around->destroy();
  }
  return true;
}

bool foldBatchNorm(PassContext& context) {
  bool changed = false;
  forEachNode(*context.graph(), [&](Node* node) {
    if (node->kind() == c10::aten::batch_norm) {
      changed |= foldInto(node);
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
