// Merge a correlation and the addition of a bias into a convolution: the inverse of split_conv_bias.
//
//   %y = jit_passes::correlation(%x, %w, %stride, %padding, %dilation, False, %zeros, %groups)
//   %z = jit_passes::add_bias(%y, %b, 2)
//     ->  %z = aten::conv2d(%x, %w, %b, %stride, %padding, %dilation, %groups)
//   with True
//     ->  %z = aten::conv_transpose2d(%x, %w, %b, %stride, %padding, %output_padding, %groups, %dilation)
//   %y = jit_passes::correlation(%x, %w, %stride, "same", %dilation, %groups)
//     ->  %z = aten::conv2d(%x, %w, %none, %stride, "same", %dilation, %groups)
//
//   %y = jit_passes::correlation(%x, %w, [], [], [], False, [], 1)
//   %z = jit_passes::add_bias(%y, %b, 0)
//     ->  %z = aten::linear(%x, %w, %b)
//
// The branch in which split_conv_bias adds a bias that may be None goes too, since a convolution takes None. So does
// the unwrapping of an attribute that holds a tensor.
//
// A bias is merged if the addition is the only use of the correlation, in one block with it, and no operand of the
// convolution can have been written to before the convolution reads it. Otherwise the addition stays, and the
// correlation becomes a convolution without bias.
//
// The pass assumes that the bias has the dtype that the convolution takes, though add_bias takes any.
//
// The number of spatial axes comes from the addition, or from the weight if it is a constant or an attribute, or
// from the longest list, since split_conv_bias writes a number for each axis. So a list of one number for several
// axes, written by hand, needs an addition or a known weight. If none of these is known, or `transposed` is known at
// run time only, the correlation stays.
#include "graph/alias.h"
#include "graph/dialect.h"
#include "graph/registry.h"
#include "passes/convolution.h"

namespace jit_passes {
namespace {

bool isCorrelation(const Node* node) { return node->kind() == correlation; }

bool isAddition(const Node* node) { return node->kind() == add_bias; }

// Whether the node is the branch of split_conv_bias on whether there is a bias.
bool addsOptionalBias(const Node* branch) {
  const Node* check = branch->input()->node();
  if (check->kind() != aten::__is__ || !isNone(check, "obj") || branch->outputs().size() != 1) {
    return false;
  }
  const Block *absent = branch->blocks()[0], *present = branch->blocks()[1];
  const Node* addition = present->outputs()[0]->node();
  if (!isAddition(addition) || absent->nodes().begin() != absent->nodes().end() ||
      absent->outputs()[0] != inputOf(addition, "x")) {
    return false;
  }
  const Node* cast = inputOf(addition, "bias")->node();
  const bool same_bias = cast->kind() == prim::unchecked_cast && cast->input() == inputOf(check, "self");
  const bool nothing_else = std::all_of(
      present->nodes().begin(), present->nodes().end(),
      [&](const Node* node) { return node == addition || node == cast || isConstant(node->output()); });
  return same_bias && nothing_else;
}

class Merger {
 public:
  explicit Merger(const PassContext& context) : graph_(context.graph()), known_(context) {}

  bool run() {
    forEachNode(*graph_, [&](Node* node) {
      if (isAddition(node)) {
        merge(inputOf(node, "x")->node(), node, inputOf(node, "bias"), 1);
      } else if (node->kind() == prim::If && addsOptionalBias(node)) {
        Node* correlation = node->blocks()[0]->outputs()[0]->node();
        merge(correlation, node, inputOf(node->input()->node(), "self"), 2);
      }
    });
    forEachNode(*graph_, [&](Node* node) {
      if (isCorrelation(node)) {
        replace(node, node, nullptr, node);
      }
    });
    if (changed_) {
      removeDeadNodes(graph_);
    }
    return changed_;
  }

 private:
  // `sum` is the addition, or the branch around it. `sum` uses the correlation's result `uses` times.
  void merge(Node* correlation, Node* sum, Value* bias, size_t uses) {
    if (!isCorrelation(correlation) || correlation->output()->uses().size() != uses ||
        correlation->owningBlock() != sum->owningBlock() || known_.isWritten(correlation->output())) {
      return;
    }
    if (Node* unwrapping = bias->node(); unwrapping->kind() == aten::_unwrap_optional) {
      const auto held = known_.attribute(unwrapping->input());
      bias = held && held->isTensor() ? unwrapping->input() : bias;
    }
    Node* place = placeFor(correlation, sum, bias);
    if (place != nullptr && replace(correlation, place, bias, sum)) {
      correlation->destroy();
    }
  }

  // The node, `correlation` or `sum`, where the convolution can stand and read all operands unchanged; null for
  // neither.
  Node* placeFor(Node* correlation, Node* sum, const Value* bias) const {
    const auto inputs = correlation->inputs();
    const bool later =
        std::ranges::none_of(inputs, [&](const Value* input) { return known_.isWritten(input); });
    if (later || nothingHappensBetween(correlation, sum)) {
      return sum;
    }
    return !known_.isWritten(bias) && bias->node()->isBefore(correlation) ? correlation : nullptr;
  }

  static bool nothingHappensBetween(const Node* first, const Node* last) {
    for (const Node* node = first->next(); node != last; node = node->next()) {
      const bool harmless = node->kind() == prim::Constant || node->kind() == prim::GetAttr ||
                            node->kind() == aten::_unwrap_optional || node->kind() == aten::__is__;
      if (!harmless) {
        return false;
      }
    }
    return true;
  }

  std::optional<int64_t> spatialDims(const Node* correlation, const Convolution& convolution) const {
    for (const auto& use : correlation->output()->uses()) {
      if (isAddition(use.user) && use.offset == 0) {
        if (const auto dims = constantNumber(use.user, "spatial_dims")) {
          return *dims;
        }
      }
    }
    return convolution.knownDims(known_);
  }

  // Inserts a convolution in front of `place`, and replaces the result of `replaced` by its result.
  bool replace(Node* correlation, Node* place, Value* bias, Node* replaced) {
    Convolution convolution = operandsOfConvolution(correlation);
    convolution.bias = bias;
    const auto dims = spatialDims(correlation, convolution);
    Value* result = dims == 0 ? insertLinear(convolution, place, correlation)
                              : convolution.insert(dims, place, correlation);
    if (result == nullptr) {
      return false;
    }
    result->setType(replaced->output()->type());
    known_.inherit(result, replaced->output());
    replaceNode(replaced, result);
    changed_ = true;
    return true;
  }

  static Value* insertLinear(const Convolution& window, Node* before, const Node* like) {
    Value* bias = window.bias != nullptr ? window.bias : insertConstant(before, {});
    return insertValue(before, aten::linear, {window.input, window.weight, bias}, like);
  }

  std::shared_ptr<Graph> graph_;
  KnownValues known_;
  bool changed_ = false;
};

bool mergeConvBias(PassContext& context) { return Merger(context).run(); }

const RegisterPass merge_conv_bias_pass{
    "merge_conv_bias", "Merge correlation and add_bias into convolutions and linears.", mergeConvBias,
    needs("inlined")};

} // namespace
} // namespace jit_passes
