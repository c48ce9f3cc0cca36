// Compute the weights and biases that models in training compute from their parameters, once these are
// constants.
//
//   %f = jit_passes::fold_factor(...)                           ->
//   %wd, %fold = jit_passes::deferred_weight(%w, %f, 0, True)   ->   %wd = prim::Constant[value=...]()
//                                                                    %fold = prim::Constant()
//   %b = jit_passes::fold_bias(...)                             ->   %b = prim::Constant[value=...]()
//   %wt = aten::t(%w)                                           ->   %wt = prim::Constant[value=...]()
//   %wg = aten::mul(%w, %g)                                     ->   %wg = prim::Constant[value=...]()
//
// the last, and all that works element by element, for what is quantized there alone,
// by the very operators that the model has trained with. Constants have the names of what they were made of.
#include "core/alias.h"
#include "core/batch_norm.h"
#include "core/operators.h"
#include "core/places.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool isQuantizedAlone(const Node* node) {
  return isElementwise(node) && !node->output()->uses().empty() &&
         std::ranges::all_of(node->output()->uses(), [](const auto& use) {
           return isTrained(use.user) || isQuantizedAlone(use.user);
         });
}

bool isFold(const Node* node) {
  static const auto kinds =
      symbols({"jit_passes::fold_factor", "jit_passes::fold_bias", "jit_passes::deferred_weight"});
  return (kinds.count(node->kind()) > 0 || isTranspose(node) || isQuantizedAlone(node)) &&
         std::ranges::all_of(node->inputs(), isConstant);
}

bool replaceByConstants(Node* node) {
  const at::NoGradGuard guard;
  const auto results = torch::jit::runNodeIfInputsAreConstant(node);
  if (!results) {
    return false;
  }
  for (size_t i = 0; i < results->size(); ++i) {
    Value* constant = insertConstant(node, results->at(i));
    if (i == 0) {
      copyName(constant, node->input(0));
    }
    node->output(i)->replaceAllUsesWith(constant);
  }
  node->destroy();
  return true;
}

// The operand, or what training has put around it.
Value* constantOperand(Node* node, size_t operand) {
  Node* maker = node->input(operand)->node();
  return isTrained(maker) ? maker->input(0) : node->input(operand);
}

bool foldDeferred(PassContext& context) {
  const auto graph = context.graph();
  const auto written = writtenValues(graph);
  const bool changed = changeNodes(*graph, [&](Node* node) {
    return isFold(node) && !written.count(node->output(0)) && replaceByConstants(node);
  });
  if (changed) {
    forEachNode(*graph, [](Node* node) {
      if (weightedOperator(node)) {
        nameBias(constantOperand(node, 2), constantOperand(node, 1));
      }
    });
  }
  return changed;
}

const RegisterPass fold_deferred_pass{
    "fold_deferred",
    "Compute the weights and biases that models in training compute from their parameters.",
    foldDeferred,
    {"inlined"}};

} // namespace
} // namespace jit_passes
