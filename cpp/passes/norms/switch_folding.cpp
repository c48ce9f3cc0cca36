// Fold deferred batch norms whenever their statistics do not change.
//
//   %wd, %fold = jit_passes::deferred_weight(%w, %factor, 0, False)
//   %wq = jit_passes::train_lsq(%wd, ..., %fold, ...)
//   %y = aten::conv2d(%x, %wq, %b, ...)
//   %shift = jit_passes::fold_bias(%b, %gamma, %beta, %mean, %var, %eps)
//   %rounded = jit_passes::train_bias(%shift, ...)
//   %z = jit_passes::deferred_batch_norm(%y, ..., %training, ..., %rounded, None, False)
//     ->
//   %folded = aten::__not__(%training)
//   %wd, %fold = jit_passes::deferred_weight(%w, %factor, 0, %folded)
//   %wq = jit_passes::train_lsq(%wd, ..., %fold, ...)
//   %shift = jit_passes::fold_bias(%b, %gamma, %beta, %mean, %var, %eps)
//   %rounded = jit_passes::train_bias(%shift, ...)
//   %bd : Tensor? = jit_passes::deferred_bias(%b, %rounded, %wq, %folded)
//   %y = aten::conv2d(%x, %wq, %bd, ...)
//   %z = jit_passes::deferred_batch_norm(%y, ..., %training, ..., %rounded, %shift, %folded)
//
// A model in eval mode, or with frozen statistics, then computes the results of the converted model, to the bit if
// the convolution does. If the weight is not quantized, folding gains nothing, and the batch norm becomes
// aten::batch_norm.
#include "graph/dialect.h"
#include "graph/places.h"
#include "graph/registry.h"
#include "quantization/batch_norm.h"

namespace jit_passes {
namespace {

// The weight of a convolution before its fake quantization; null if the fake quantization takes no factor.
Node* deferredWeightOf(const Node* convolution) {
  const Node* trained = inputOf(convolution, "weight")->node();
  if (!isTrained(trained)) {
    return nullptr;
  }
  Node* weight = mainOperand(trained)->node();
  return weight->kind() == deferred_weight ? weight : nullptr;
}

// A weight may have several readers, all with equal batch norms, so its switch is made once.
Value* switchOf(Node* weight, Value* training) {
  Value* known = inputOf(weight, "folded");
  if (constantNumber(known) != 0.0) {
    return known;
  }
  if (const auto always = constantNumber(training)) {
    return insertConstant(weight, *always == 0.0);
  }
  hoist(training, weight);
  return insertValue(weight, aten::__not__, {training}, weight, c10::BoolType::get());
}

void switchFolding(Node* norm, Node* weight) {
  Node* convolution = inputOf(norm, "input")->node();
  Value* folded = switchOf(weight, norm->input(kTraining));
  Value* rounded = inputOf(norm, "rounded");
  hoist(rounded, convolution);
  const auto operands = {inputOf(convolution, "bias"), rounded, inputOf(convolution, "weight"), folded};
  convolution->replaceInput(
      2, insertValue(convolution, deferred_bias, operands, norm, c10::OptionalType::ofTensor()));
  if (isTrained(rounded->node())) {
    setOperand(norm, "shift", mainOperand(rounded->node()));
  }
  for (Node* node : {weight, norm}) {
    setOperand(node, "folded", folded);
  }
}

bool switchAllFolding(PassContext& context) {
  return changeNodes(*context.graph(), [](Node* node) {
    if (!isDeferredBatchNorm(node)) {
      return false;
    }
    const Node* convolution = inputOf(node, "input")->node();
    Node* weight = deferredWeightOf(convolution);
    if (weight == nullptr) {
      replaceDeferred(node);
    } else if (inputOf(convolution, "bias")->node()->kind() != deferred_bias) {
      switchFolding(node, weight);
    } else {
      return false;
    }
    return true;
  });
}

const RegisterPass switch_folding_pass{
    "switch_folding", "Fold deferred batch norms whenever their statistics stand still.", switchAllFolding,
    needs("inlined")};

} // namespace
} // namespace jit_passes
