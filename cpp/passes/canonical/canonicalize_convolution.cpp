// Bring convolutions to the form of scripted models, with padding in numbers. Traces have these operators:
//
//   aten::_convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups, ...)
//     ->  aten::conv{1,2,3}d(x, w, b, stride, padding, dilation, groups)
//     or  aten::conv_transpose{1,2,3}d(x, w, b, stride, padding, output_padding, groups, dilation)
//   aten::_convolution_mode(x, w, b, stride, "same" or "valid", dilation, groups)
//     ->  aten::conv{1,2,3}d(x, w, b, stride, "same" or "valid", dilation, groups)
//
// and then
//
//   aten::conv2d(%x, %w, %b, %stride, "same", %dilation, %groups)
//     ->  aten::conv2d(%x, %w, %b, %stride, [p, ...], %dilation, %groups)
//
// "same" pads dilation * (kernel - 1) zeros along each axis, half of them on each side. If the number is odd, a
// constant_pad_nd adds the last zero at the end, as in PyTorch.
#include "graph/operators.h"
#include "graph/registry.h"
#include "passes/convolution.h"

namespace jit_passes {
namespace {

bool nameConvolutions(PassContext& context) {
  static const auto kinds = symbols({"aten::_convolution", "aten::_convolution_mode"});
  const auto traced = [](const Node* node) { return kinds.count(node->kind()) > 0; };
  if (nodesWhere(*context.graph(), traced).empty()) {
    return false;
  }
  const KnownValues known(context);
  return replaceNodes(*context.graph(), [&](Node* node) -> Value* {
    const auto convolution = traced(node) ? readConvolution(node) : std::nullopt;
    return convolution && known.length(convolution->stride)
               ? convolution->insert(convolution->knownDims(known), node, node)
               : nullptr;
  });
}

std::optional<std::string> paddingMode(const Node* node) {
  const auto padding = constantOf(node, "padding");
  return padding && padding->isString() ? std::optional(padding->toStringRef()) : std::nullopt;
}

// The numbers of an int or int[] constant, one for each axis.
std::optional<std::vector<int64_t>> perAxis(const Value* value, int64_t dims) {
  const auto constant = constantOf(value);
  if (constant && constant->isInt()) {
    return std::vector<int64_t>(dims, constant->toInt());
  }
  auto numbers = constantInts(value);
  if (numbers && numbers->size() == 1) {
    numbers->resize(dims, numbers->front());
  }
  return numbers;
}

bool replacePadding(Node* node, const std::string& mode, int64_t dims, const KnownValues& known) {
  const auto weight = known.tensor(inputOf(node, "weight"));
  const auto dilation = perAxis(inputOf(node, "dilation"), dims);
  if (!weight || !dilation) {
    return false;
  }
  std::vector<int64_t> padding(dims, 0), extra(2 * dims, 0);
  bool odd = false;
  for (int64_t axis = 0; axis < dims && mode == "same"; ++axis) {
    const int64_t total = (*dilation)[axis] * (weight->size(2 + axis) - 1);
    padding[axis] = total / 2;
    extra[2 * (dims - 1 - axis) + 1] = total % 2; // constant_pad_nd starts at the last axis
    odd |= total % 2 == 1;
  }
  if (odd) {
    static const auto pad = symbol("aten::constant_pad_nd");
    const std::vector<Value*> operands{
        inputOf(node, "input"), insertConstant(node, extra), insertConstant(node, static_cast<int64_t>(0))};
    node->replaceInput(0, insertValue(node, pad, operands, node));
  }
  node->replaceInput(4, insertConstant(node, padding));
  return true;
}

bool canonicalizeConvolution(PassContext& context) {
  const bool named = nameConvolutions(context);
  std::optional<KnownValues> known;
  const bool padded = changeNodes(*context.graph(), [&](Node* node) {
    const auto op = weightedOperator(node);
    const auto mode = op && op->spatial_dims > 0 && !op->transposed ? paddingMode(node) : std::nullopt;
    if (mode && !known) {
      known.emplace(context, /*attributes_apart=*/true);
    }
    return mode && replacePadding(node, *mode, op->spatial_dims, *known);
  });
  return named || padded;
}

const RegisterPass canonicalize_convolution_pass{
    "canonicalize_convolution",
    "Turn traced convolutions into conv and conv_transpose, and padding into numbers.",
    canonicalizeConvolution, needs("inlined")};

} // namespace
} // namespace jit_passes
