// Compute values that a model in training computes from its parameters alone, once these are constants. The
// operators that the model has trained with compute them.
//
//   %f = jit_passes::fold_factor(...)                           ->
//   %wd, %fold = jit_passes::deferred_weight(%w, %f, 0, True)   ->   %wd = prim::Constant[value=...]()
//                                                                    %fold = prim::Constant()
//   %b = jit_passes::fold_bias(...)                             ->   %b = prim::Constant[value=...]()
//   %wt = aten::t(%w)                                           ->   %wt = prim::Constant[value=...]()
//   %wn = aten::_weight_norm(%v, %g, 0)                         ->   %wn = prim::Constant[value=...]()
//
// Quantizing operators stay. A constant has the name of the parameter that it was computed from.
#include "facts/known_values.h"
#include "graph/alias.h"
#include "graph/operators.h"
#include "graph/places.h"
#include "graph/registry.h"
#include "quantization/batch_norm.h"

namespace jit_passes {
namespace {

bool isFold(const Node* node) {
  static const auto kinds =
      symbols({"jit_passes::fold_factor", "jit_passes::fold_bias", "jit_passes::deferred_weight"});
  return std::ranges::all_of(node->inputs(), isConstant) && !node->inputs().empty() &&
         (kinds.count(node->kind()) > 0 || (!startsWith(node, "jit_passes::") && isPure(node))) &&
         !isTrained(node);
}

bool replaceByConstants(Node* node) {
  const at::NoGradGuard guard;
  const auto results = torch::jit::runNodeIfInputsAreConstant(node);
  if (!results) {
    return false;
  }
  for (size_t i = 0; i < results->size(); ++i) {
    Value* constant = insertConstant(node, results->at(i));
    if (i == 0 && results->at(i).isTensor()) {
      copyName(constant, mainOperand(node));
    }
    node->output(i)->replaceAllUsesWith(constant);
  }
  node->destroy();
  return true;
}

// The operand, without operators that training has put around it.
Value* constantOperand(Node* node, size_t operand) {
  Node* maker = node->input(operand)->node();
  return isTrained(maker) ? mainOperand(maker) : node->input(operand);
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
    "fold_deferred", "Compute values of training that depend on parameters alone.", foldDeferred,
    needs("inlined")};

} // namespace
} // namespace jit_passes
