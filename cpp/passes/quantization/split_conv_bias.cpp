// Split convolutions into a correlation and the addition of the bias.
//
//   aten::conv2d(%x, %w, %b, %stride, %padding, %dilation, %groups)
//     ->  %y = jit_passes::correlation(%x, %w, %stride, %padding, %dilation, False, [0, 0], %groups)
//         jit_passes::add_bias(%y, %b, 2)
//   with padding "same" or "valid"
//     ->  %y = jit_passes::correlation(%x, %w, %stride, "same", %dilation, %groups)
//
// and likewise for conv1d, conv3d, conv_transpose{1,2,3}d, and for _convolution, _convolution_mode and convolution
// of traces. With the option `linears`, a linear is split too, as a convolution without spatial axes:
//
//   aten::linear(%x, %w, %b)
//     ->  %y = jit_passes::correlation(%x, %w, [], [], [], False, [], 1)
//         jit_passes::add_bias(%y, %b, 0)
//
// Without bias there is no addition. A bias that may be None:
//
//   %bias : Tensor? = prim::GetAttr[name="bias"](%conv)     # holds a tensor
//     ->  %b : Tensor = aten::_unwrap_optional(%bias)
//   %bias : Tensor?                                         # an argument of the method, say
//     ->  %absent : bool = aten::__is__(%bias, %none)
//         %z : Tensor = prim::If(%absent)
//           block0():
//             -> (%y)
//           block1():
//             %b : Tensor = prim::unchecked_cast(%bias)
//             %s : Tensor = jit_passes::add_bias(%y, %b, 2)
//             -> (%s)
//
// The content of an attribute when the pass runs counts; if it loses its tensor later, the graph raises an error at
// run time. Both new results are new tensors, like the convolution's, and both nodes stand at the convolution's
// place, so writes before and after it have equal effects.
//
// Four kinds of nodes stay: _convolution and the like if neither a list of more than one number nor the weight tells
// the number of axes; a linear whose weight is not known to have two axes; nodes in a forked branch; and nodes in
// scripted code's `with torch.autocast(...)`. TorchScript implements autocast by casts in front of PyTorch's own
// operators only. The flags of _convolution (benchmark, deterministic, ...) go: the flags of the process apply, as
// in scripted code.
//
// Under autocast, a correlation casts as conv2d does. PyTorch on the CPU does not cast for a traced
// _convolution_mode, so the result then has another dtype, as in canonicalize_convolution.
#include <unordered_set>

#include "facts/shapes.h"
#include "graph/alias.h"
#include "graph/dialect.h"
#include "graph/registry.h"
#include "passes/convolution.h"

namespace jit_passes {
namespace {

bool isAutocast(const Node* node) {
  const auto type = mainOperand(node)->type()->cast<c10::ClassType>();
  return type && type->name() && type->name()->name().find("autocast") != std::string::npos;
}

class Splitter {
 public:
  explicit Splitter(const PassContext& context)
      : context_(context), graph_(context.graph()), known_(context) {}

  bool run() {
    findMatrices();
    forEachNode(*graph_, [&](Node* node) {
      if (node->kind() == prim::Enter || node->kind() == prim::Exit) {
        autocasts_ += !isAutocast(node) ? 0 : node->kind() == prim::Enter ? 1 : -1;
      } else if (autocasts_ == 0) {
        if (const auto convolution = readConvolution(node)) {
          split(node, *convolution);
        } else if (matrices_.count(node) > 0) {
          splitLinear(node);
        }
      }
    });
    if (changed_) { // removes flags and biases that are None
      removeDeadNodes(graph_);
    }
    return changed_;
  }

 private:
  // The graph may tell the rank of a weight that the model computes.
  void findMatrices() {
    if (!context_.option("linears").toBool()) {
      return;
    }
    const Shapes shapes(context_);
    for (const Node* node : nodesWhere(*graph_, [](const Node* n) { return n->kind() == aten::linear; })) {
      if (known_.rank(inputOf(node, "weight")) == 2 || shapes.weightRank(node) == 2) {
        matrices_.insert(node);
      }
    }
  }

  void split(Node* node, const Convolution& convolution) {
    const auto dims = spatialDims(convolution);
    static const auto maybe_tensor = c10::OptionalType::ofTensor();
    if (dims && *dims >= 1 && *dims <= kMostSpatialDims &&
        convolution.bias->type()->isSubtypeOf(*maybe_tensor)) {
      replaceBySum(node, correlate(node, convolution, *dims), convolution.bias, *dims);
    }
  }

  void splitLinear(Node* node) {
    Value* none = insertConstant(node, std::vector<int64_t>{});
    const std::vector<Value*> operands{
        inputOf(node, "input"), inputOf(node, "weight"), none, none, none, insertConstant(node, false), none,
        insertConstant(node, 1)};
    replaceBySum(node, insertValue(node, correlation, operands, node), inputOf(node, "bias"), /*dims=*/0);
  }

  void replaceBySum(Node* node, Value* plain, Value* bias, int64_t dims) {
    Value* result = addBias(node, plain, bias, dims);
    result->setType(node->output()->type());
    known_.inherit(result, node->output());
    replaceNode(node, result);
    changed_ = true;
  }

  std::optional<int64_t> spatialDims(const Convolution& convolution) const {
    if (convolution.spatial_dims > 0) {
      return convolution.spatial_dims;
    }
    const auto dims = convolution.knownDims(known_);
    const bool told = known_.rank(convolution.weight) || (dims && *dims > 1);
    return told ? dims : std::nullopt;
  }

  // The list with one number for each axis, so that its length tells the number of axes.
  Value* writtenOut(Value* list, int64_t dims, Node* before) const {
    if (dims == 1 || known_.length(list) != 1) {
      return list;
    }
    if (isConstant(list)) {
      const auto number = constantOf(list)->toIntVector().at(0);
      return insertConstant(before, std::vector<int64_t>(dims, number));
    }
    const std::vector<Value*> numbers(dims, list->node()->input());
    return graph_->createList(c10::IntType::get(), numbers)->insertBefore(before)->output();
  }

  Value* correlate(Node* node, const Convolution& convolution, int64_t dims) const {
    const auto list = [&](Value* value) { return writtenOut(value, dims, node); };
    if (convolution.padsByMode()) {
      const std::vector<Value*> operands{convolution.input,          convolution.weight,
                                         list(convolution.stride),   convolution.padding,
                                         list(convolution.dilation), convolution.groups};
      return insertValue(node, correlation, operands, node);
    }
    const std::vector<Value*> operands{
        convolution.input,
        convolution.weight,
        list(convolution.stride),
        list(convolution.padding),
        list(convolution.dilation),
        convolution.transposed != nullptr ? convolution.transposed
                                          : insertConstant(node, convolution.is_transposed),
        convolution.output_padding != nullptr ? list(convolution.output_padding)
                                              : insertConstant(node, std::vector<int64_t>(dims, 0)),
        convolution.groups};
    return insertValue(node, correlation, operands, node);
  }

  Value* addBias(Node* node, Value* plain, Value* bias, int64_t dims) const {
    const auto held = known_.attribute(bias);
    if (known_.isNone(bias)) {
      return plain;
    }
    Value* axes = insertConstant(node, dims);
    if (isTensor(bias)) {
      return insertValue(node, add_bias, {plain, bias, axes}, node);
    }
    if (held && held->isTensor()) {
      Value* tensor = insertValue(node, aten::_unwrap_optional, {bias}, node);
      return insertValue(node, add_bias, {plain, tensor, axes}, node);
    }
    Value* none = insertConstant(node, {});
    Value* absent = insertValue(node, aten::__is__, {bias, none}, node, c10::BoolType::get());
    Node* branch = insertNode(node, prim::If, {absent}, node, /*outputs=*/1);
    branch->addBlock()->registerOutput(plain);
    Block* present = branch->addBlock();
    Node* end = present->return_node();
    Value* tensor = insertValue(end, prim::unchecked_cast, {bias}, node);
    present->registerOutput(insertValue(end, add_bias, {plain, tensor, axes}, node));
    return branch->output();
  }

  const PassContext& context_;
  std::shared_ptr<Graph> graph_;
  KnownValues known_;
  std::unordered_set<const Node*> matrices_; // with the option `linears`: linears whose weight has two axes
  int64_t autocasts_ = 0;                    // scripted autocasts around the node
  bool changed_ = false;
};

bool splitConvBias(PassContext& context) { return Splitter(context).run(); }

const RegisterPass split_conv_bias_pass{
    "split_conv_bias", "Split convolutions, and linears if asked to, into correlation and add_bias.",
    splitConvBias, needs("inlined"), takes({{"linears", "bool", false}})};

} // namespace
} // namespace jit_passes
