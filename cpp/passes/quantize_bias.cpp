// Store the bias of a quantized convolution or linear as int32, in steps of the accumulator.
//
//   scale = scale(input) * scale(weight)      zero_point = 0      b_q = round(b / scale)
//
// so that integer arithmetic adds it without rescaling.
#include "core/graph.h"
#include "core/operators.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

using c10::Symbol;

const auto dequantize = Symbol::fromQualString("jit_passes::dequantize");
const auto dequantize_per_channel = Symbol::fromQualString("jit_passes::dequantize_per_channel");

// The scale of the integers that a value is computed from, seen through operators that move data.
std::optional<double> scaleOf(const Value* value) {
  const Node* node = value->node();
  while (node->kind() != dequantize && movesData(node)) {
    node = node->input(0)->node();
  }
  return node->kind() == dequantize ? constantNumber(node->input(1)) : std::nullopt;
}

std::optional<at::Tensor> weightScales(const Value* weight) {
  const Node* node = weight->node();
  if (node->kind() == dequantize_per_channel) {
    return constantTensor(node->input(1));
  }
  const auto scale = node->kind() == dequantize ? constantNumber(node->input(1)) : std::nullopt;
  return scale ? std::optional(at::full({1}, *scale, at::kDouble)) : std::nullopt;
}

bool quantizeBiasOf(Node* node) {
  const auto bias = constantTensor(node->input(2));
  const auto input_scale = scaleOf(node->input(0));
  const auto weight_scales = weightScales(node->input(1));
  if (!bias || !input_scale || !weight_scales) {
    return false;
  }
  const auto scales = (weight_scales->to(at::kDouble) * *input_scale).expand({bias->numel()}).contiguous();
  const double limit = std::numeric_limits<int32_t>::max();
  const auto codes = at::round(bias->to(at::kDouble) / scales).clamp(-limit, limit).to(at::kInt);
  const std::vector<Value*> operands{
      insertConstant(node, codes), insertConstant(node, scales.to(at::kFloat)),
      insertConstant(node, at::zeros({bias->numel()}, at::kLong)),
      insertConstant(node, static_cast<int64_t>(0))};
  node->replaceInput(2, insertNode(node, dequantize_per_channel, operands, node)->output());
  return true;
}

bool quantizeBias(PassContext& context) {
  bool changed = false;
  forEachNode(
      *context.graph(), [&](Node* node) { changed |= weightedOperator(node) && quantizeBiasOf(node); });
  return changed;
}

const RegisterPass registration{
    "quantize_bias",
    "Store biases as int32 in steps of input scale times weight scale.",
    quantizeBias,
    {"no_observers"}};

} // namespace
} // namespace jit_passes
