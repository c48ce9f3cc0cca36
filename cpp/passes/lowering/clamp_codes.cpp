// Clamp codes to a range that is narrower than their dtype: PyTorch's quantized operators saturate at the
// ends of the dtype. Where kernels add pairs of products in int16, codes beyond the range would overflow.
//
//   %q = jit_passes::quantize(%x, scale, zero_point, 0, 127, uint8)
//     ->  %all = jit_passes::quantize(%x, scale, zero_point, 0, 255, uint8)
//         %q = aten::clamp(%all, -zero_point * scale, (127 - zero_point) * scale)
//
// The bounds are numbers rather than codes, since the tensors get PyTorch's quantized dtypes next. QNNPACK's clamp
// treats every tensor as contiguous: with the option `contiguous` it gets a contiguous one. Codes that are within
// the range for certain, such as averages of clamped codes, get no further clamp.
#include <limits>

#include "graph/dialect.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

bool isAverage(const Node* node) {
  static const auto kinds = symbols(
      {"aten::avg_pool2d", "aten::avg_pool3d", "aten::adaptive_avg_pool2d", "aten::adaptive_avg_pool3d",
       "aten::mean"});
  return kinds.count(node->kind()) > 0;
}

struct CodeGrid {
  double scale, zero_point, low, high;

  // Halves may be rounded up or down, depending on the version of PyTorch.
  double lowestCodeOf(double x) const { return std::ceil(x / scale + zero_point - 0.5); }
  double highestCodeOf(double x) const { return std::floor(x / scale + zero_point + 0.5); }
};

// Whether all results of the operator have codes within the range.
bool isWithin(const Node* node, const CodeGrid& grid) {
  const Node* made = inputOf(node, "x")->node();
  if (made->kind() == aten::clamp) {
    const auto low = constantNumber(made, "min"), high = constantNumber(made, "max");
    return low && high && grid.lowestCodeOf(*low) >= grid.low && grid.highestCodeOf(*high) <= grid.high;
  }
  if (!isAverage(made) || mainOperand(made)->node()->kind() != dequantize) {
    return false;
  }
  const Node* operand = mainOperand(made)->node();
  const Node* codes = mainOperand(operand)->node();
  while (movesData(codes)) {
    codes = mainOperand(codes)->node();
  }
  return inputOf(operand, "scale") == inputOf(node, "scale") &&
         inputOf(operand, "zero_point") == inputOf(node, "zero_point") && codes->kind() == quantize &&
         constantNumber(codes, "quant_min") >= grid.low && constantNumber(codes, "quant_max") <= grid.high;
}

template <typename Code>
bool clampCodes(Node* node, const CodeGrid& grid, bool contiguous) {
  using Limits = std::numeric_limits<Code>;
  if ((grid.low <= Limits::min() && grid.high >= Limits::max()) || isWithin(node, grid)) {
    return false;
  }
  std::vector<Value*> operands(node->inputs().begin(), node->inputs().end());
  operands[3] = insertConstant(node, int64_t{Limits::min()});
  operands[4] = insertConstant(node, int64_t{Limits::max()});
  Value* all = insertValue(node, quantize, operands, node);
  if (contiguous) {
    Value* layout = insertConstant(node, static_cast<int64_t>(at::MemoryFormat::Contiguous));
    all = insertValue(node, aten::contiguous, {all, layout}, node);
  }
  const auto bound = [&](double code) { return insertConstant(node, (code - grid.zero_point) * grid.scale); };
  const auto bounded = {all, bound(grid.low), bound(grid.high)};
  replaceNode(node, insertValue(node, aten::clamp, bounded, node));
  return true;
}

bool clampAllCodes(PassContext& context) {
  const bool contiguous = context.option("contiguous").toBool();
  return changeNodes(*context.graph(), [&](Node* node) {
    if (node->kind() != quantize) {
      return false;
    }
    const auto number = [&](size_t i) { return constantNumber(node->input(i)); };
    const auto scale = number(1), zero_point = number(2), low = number(3), high = number(4),
               dtype = number(5);
    if (!scale || !zero_point || !low || !high || !dtype) {
      return false;
    }
    const CodeGrid grid{*scale, *zero_point, *low, *high};
    switch (static_cast<at::ScalarType>(*dtype)) {
      case at::kByte: return clampCodes<uint8_t>(node, grid, contiguous);
      case at::kChar: return clampCodes<int8_t>(node, grid, contiguous);
      default: return false; // not supported by PyTorch's quantized operators
    }
  });
}

const RegisterPass clamp_codes_pass{
    "clamp_codes", "Clamp codes to a range that is narrower than their dtype.", clampAllCodes,
    needs("no_observers"), takes({{"contiguous", "bool", false}})};

} // namespace
} // namespace jit_passes
