// Give convolutions with padding='valid' or 'same' their padding in numbers.
//
//   aten::conv2d(%x, %w, %b, %stride, "same", %dilation, %groups)
//     ->  aten::conv2d(%x, %w, %b, %stride, [p, ...], %dilation, %groups)
//
// 'same' pads dilation * (kernel - 1) zeros along each axis, the odd one behind; where some axis
// has an odd one, a constant_pad_nd of its own adds it, as PyTorch does.
#include "facts/known_values.h"
#include "graph/operators.h"

namespace jit_passes {
namespace {

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

bool canonicalizePadding(PassContext& context) {
  std::optional<KnownValues> known;
  return changeNodes(*context.graph(), [&](Node* node) {
    const auto op = weightedOperator(node);
    const auto mode = op && op->spatial_dims > 0 && !op->transposed ? paddingMode(node) : std::nullopt;
    if (mode && !known) {
      known.emplace(context, /*attributes_apart=*/true);
    }
    return mode && replacePadding(node, *mode, op->spatial_dims, *known);
  });
}

const RegisterPass canonicalize_padding_pass{
    "canonicalize_padding", "Turn padding='same' and 'valid' into numbers.", canonicalizePadding,
    needs("inlined")};

} // namespace
} // namespace jit_passes
