// Let dropout and normalization follow the mode of the module, which tracing has made a constant.
//
//   %y = aten::dropout(%x, %p, True)
//     ->  %training : bool = prim::GetAttr[name="training"](%self)
//         %y = aten::dropout(%x, %p, %training)
//
//   %y = aten::scaled_dot_product_attention(%q, %k, %v, %mask, 0.2, ...)
//     ->  %on : int = aten::Int(%training)
//         %p : float = aten::mul(0.2, %on)
//         %y = aten::scaled_dot_product_attention(%q, %k, %v, %mask, %p, ...)
//
// A model that was traced in training mode also trains in eval mode. This pass gives train() and eval() their
// effect. Only nodes from tracing change: a constant in scripted code is the user's choice. Files do not tell
// whether the module's code was traced; the option `traced` does. Normalization without running statistics (see
// hasStatistics) does not depend on the mode.
#include "graph/module.h"
#include "graph/registry.h"
#include "quantization/batch_norm.h"

namespace jit_passes {
namespace {

// The operand with the mode, of dropout and normalization; 0 for other nodes.
size_t modeOf(const Node* node) {
  return isDropout(node) ? 2 : isNormalization(node->kind()) ? kTraining : 0;
}

bool isAlwaysOn(const Node* node) {
  const size_t mode = modeOf(node);
  return mode > 0 && constantNumber(node->input(mode)) == 1.0;
}

// Only tracing gives nodes a scope, and files keep no scopes. A user's own dropout may be meant to stay on.
bool isTraced(const Node* node) {
  const auto type = moduleOf(node).second;
  return !node->scopeName().empty() || type.find("BatchNorm") != std::string::npos ||
         type.find("InstanceNorm") != std::string::npos;
}

// Whether a dropout of PyTorch is always on: scripted, it would read its mode.
bool hasTracedDropout(Graph& graph) {
  static const std::unordered_set<std::string> types{"Dropout",   "Dropout1d",    "Dropout2d",
                                                     "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"};
  const auto is_traced = [](const Node* node) {
    return isDropout(node) && isAlwaysOn(node) && types.count(moduleOf(node).second) > 0;
  };
  return !nodesWhere(graph, is_traced).empty();
}

bool followMode(PassContext& context) {
  if (!context.module().hasattr("training")) {
    return false;
  }
  const auto graph = context.graph();
  const KnownValues known(context, /*attributes_apart=*/true);
  const bool traced = context.option("traced").toBool() || hasTracedDropout(*graph);
  Value* training = nullptr;
  const auto read = [&] {
    if (training == nullptr) {
      training = readAttribute(*graph, graph->block()->nodes().front(), "training");
    }
    return training;
  };
  const auto attentions = nodesWhere(*graph, [&](const Node* node) {
    return node->kind() == aten::scaled_dot_product_attention && constantNumber(node, "dropout_p") > 0.0 &&
           (traced || isTraced(node));
  });
  for (Node* node : attentions) {
    Value* on = insertValue(node, symbol("aten::Int"), {read()}, node, c10::IntType::get());
    Value* share = inputOf(node, "dropout_p");
    setOperand(node, "dropout_p", insertValue(node, aten::mul, {share, on}, node, c10::FloatType::get()));
  }
  forEachNode(*graph, [&](Node* node) {
    const bool follows = isAlwaysOn(node) && (traced || isTraced(node));
    if (follows && (isDropout(node) || hasStatistics(known, node))) {
      node->replaceInput(modeOf(node), read());
    }
  });
  return training != nullptr;
}

const RegisterPass follow_mode_pass{
    "follow_mode", "Let traced dropout and normalization follow the mode of the module.", followMode,
    needs("inlined"), takes({{"traced", "bool", false}})};

} // namespace
} // namespace jit_passes
