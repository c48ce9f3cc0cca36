// Replace dtypes that follow from weights by numbers, and remove casts that change nothing.
//
//   %x = aten::conv2d(...), with weights of float32
//   %dtype : int = prim::dtype(%x)                          ->   %dtype : int = prim::Constant[value=6]()
//   %w = aten::to(%weight, %dtype, %no, %no, %none)         ->   %weight, if that is of float32
//   %q = aten::type_as(%x, %v)                              ->   %x, if both are, and on one device
//
// Scripted classifiers of timm cast weight and bias to the dtype of their input, so weight and bias would not be
// constants.
#include "facts/dtypes.h"
#include "simplify.h"

namespace jit_passes {
namespace {

const auto dtype_of = symbol("prim::dtype");

std::vector<Node*> findKnown(const PassContext& context) {
  std::vector<Node*> found;
  Dtypes dtypes(context);
  forEachNode(*context.graph(), [&](Node* node) {
    const bool asks = node->kind() == dtype_of, like = node->kind() == aten::type_as;
    const bool one_device = like && dtypes.isFloat(inputOf(node, "other")) &&
                            dtypes.areOnOneDevice(inputOf(node, "self"), inputOf(node, "other"));
    if ((asks || one_device || dtypes.casts(node)) && dtypes.isFloat(mainOperand(node))) {
      found.push_back(node);
    }
    dtypes.add(node);
  });
  return found;
}

} // namespace

bool foldDtypes(PassContext& context) {
  const auto asks = [](const Node* node) {
    return node->kind() == dtype_of || node->kind() == aten::to || node->kind() == aten::type_as;
  };
  if (nodesWhere(*context.graph(), asks).empty()) {
    return false;
  }
  const auto found = findKnown(context);
  for (Node* node : found) {
    const bool asks_dtype = node->kind() == dtype_of;
    replaceNode(node, asks_dtype ? insertConstant(node, int64_t(at::kFloat)) : mainOperand(node));
  }
  return !found.empty();
}

} // namespace jit_passes
