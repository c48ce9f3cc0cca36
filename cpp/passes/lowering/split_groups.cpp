// Split convolutions with more groups than the engine x86 gives to oneDNN, if FBGEMM has only a scalar loop for
// them.
//
//   %y = quantized::conv2d(%x, prepack(%w, %bias, ..., groups=256), ...)
//     ->  %x0 = aten::slice(%x, 1, 0, 96, 1)
//         %y0 = quantized::conv2d(%x0, prepack(%w[0:96], %bias[0:96], ..., groups=96), ...)
//         ... and so on for 96 to 192, 192 to 256
//         %y = aten::cat([%y0, %y1, %y2], 1)
//
// The groups of a convolution are independent, so the accumulators stay. The two libraries add the bias and scale
// in float, in another order: a result next to the middle of two codes may round the other way.
#include "fbgemm.h"
#include "graph/alias.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

constexpr int64_t kMostGroups = 100; // ATen/native/quantized/cpu/OnednnUtils.h, should_use_onednn_quant
constexpr int64_t kMultiple = 16;    // channels of one vector

bool isConvolution(const Node* node) {
  static const auto kinds =
      symbols({"quantized::conv2d", "quantized::conv2d_relu", "quantized::conv3d", "quantized::conv3d_relu"});
  return kinds.count(node->kind()) > 0;
}

// The rows `begin` to `end` of a constant with one row for each output channel; other values stay.
Value* rows(Value* value, int64_t channels, int64_t begin, int64_t end, Node* before) {
  const auto tensor = constantTensor(value);
  const bool one_each = tensor && tensor->dim() > 0 && tensor->size(0) == channels;
  return one_each ? insertConstant(before, tensor->slice(0, begin, end).clone()) : value;
}

bool splitGroups(Node* node) {
  Node* prepack = node->input(1)->node();
  if (prepack->inputs().size() != 6 || inputOf(prepack, "weight")->node()->inputs().empty()) {
    return false;
  }
  Node* weight_node = inputOf(prepack, "weight")->node();
  const auto weight = constantTensor(mainOperand(weight_node));
  const auto stride = constantInts(prepack, "stride"), padding = constantInts(prepack, "padding"),
             dilation = constantInts(prepack, "dilation");
  const int64_t groups = static_cast<int64_t>(constantNumber(prepack, "groups").value_or(1));
  if (!weight || !stride || !padding || !dilation || groups <= kMostGroups ||
      fastOnFbgemm(weight->sizes(), *stride, *padding, *dilation, groups)) {
    return false;
  }
  const int64_t parts = (groups + kMostGroups - 1) / kMostGroups;
  const int64_t even = (groups + parts - 1) / parts;
  const int64_t step =
      std::min(kMostGroups / kMultiple * kMultiple, (even + kMultiple - 1) / kMultiple * kMultiple);
  const int64_t channels = weight->size(0), in = weight->size(1), out = channels / groups;
  std::vector<Value*> results;
  for (int64_t begin = 0; begin < groups; begin += step) {
    const int64_t end = std::min(begin + step, groups);
    const auto part = [&](Value* value) { return rows(value, channels, begin * out, end * out, node); };
    const auto number = [&](int64_t value) { return insertConstant(node, value); };
    std::vector<Value*> codes;
    for (Value* input : weight_node->inputs()) {
      codes.push_back(part(input));
    }
    std::vector<Value*> parameters = prepack->inputs().vec();
    parameters[0] = insertValue(node, weight_node->kind(), codes, node);
    parameters[1] = part(parameters[1]);
    parameters[5] = number(end - begin);
    Value* packed = insertValue(node, prepack->kind(), parameters, node, prepack->output()->type());
    std::vector<Value*> operands = node->inputs().vec();
    const std::vector<Value*> range{operands[0], number(1), number(begin * in), number(end * in), number(1)};
    operands[0] = insertValue(node, aten::slice, range, node);
    operands[1] = packed;
    results.push_back(insertValue(node, node->kind(), operands, node));
  }
  Node* list = node->owningGraph()->createList(c10::TensorType::get(), results)->insertBefore(node);
  Value* whole = insertValue(node, aten::cat, {list->output(), insertConstant(node, 1)}, node);
  replaceNode(node, whole);
  return true;
}

bool splitAll(PassContext& context) {
  if (context.option("engine").toStringRef() != "x86") {
    return false;
  }
  const bool changed =
      changeNodes(*context.graph(), [](Node* node) { return isConvolution(node) && splitGroups(node); });
  if (changed) { // fold_prepack would pack the whole weights too
    removeDeadNodes(context.graph());
  }
  return changed;
}

const RegisterPass split_groups_pass{
    "split_groups", "Split convolutions into as few groups as oneDNN takes.", splitAll, needs("inlined"),
    takes({{"engine", "str"}})};

} // namespace
} // namespace jit_passes
