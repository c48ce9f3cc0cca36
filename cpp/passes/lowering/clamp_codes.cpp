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

bool clampsWithin(const Node* node, const CodeGrid& grid) {
  if (node->kind() != aten::clamp) {
    return false;
  }
  const auto low = constantNumber(node, "min"), high = constantNumber(node, "max");
  return low && high && grid.lowestCodeOf(*low) >= grid.low && grid.highestCodeOf(*high) <= grid.high;
}

// Whether all results of the operator have codes within the range.
bool isWithin(const Node* node, const CodeGrid& grid) {
  const Node* made = inputOf(node, "x")->node();
  if (made->kind() == aten::clamp) {
    return clampsWithin(made, grid);
  }
  if (!isAverage(made) || mainOperand(made)->node()->kind() != dequantize) {
    return false;
  }
  const Node* operand = mainOperand(made)->node();
  const Node* codes = mainOperand(operand)->node();
  while (movesData(codes)) {
    codes = mainOperand(codes)->node();
  }
  const bool narrow = codes->kind() == quantize && constantNumber(codes, "quant_min") >= grid.low &&
                      constantNumber(codes, "quant_max") <= grid.high;
  return inputOf(operand, "scale") == inputOf(node, "scale") &&
         inputOf(operand, "zero_point") == inputOf(node, "zero_point") &&
         (narrow || clampsWithin(codes, grid));
}

// The grid of a quantize with fewer codes than its dtype has, and the first and last code of the dtype.
struct NarrowGrid : CodeGrid {
  int64_t first, last;
};

template <typename Code>
std::optional<NarrowGrid> narrowGrid(const CodeGrid& grid) {
  using Limits = std::numeric_limits<Code>;
  const bool narrow = grid.low > Limits::min() || grid.high < Limits::max();
  return narrow ? std::optional(NarrowGrid{grid, Limits::min(), Limits::max()}) : std::nullopt;
}

std::optional<NarrowGrid> narrowGridOf(const Node* node) {
  const auto number = [&](size_t i) { return constantNumber(node->input(i)); };
  if (node->kind() != quantize) {
    return std::nullopt;
  }
  const auto scale = number(1), zero_point = number(2), low = number(3), high = number(4), dtype = number(5);
  if (!scale || !zero_point || !low || !high || !dtype) {
    return std::nullopt;
  }
  const CodeGrid grid{*scale, *zero_point, *low, *high};
  switch (static_cast<at::ScalarType>(*dtype)) {
    case at::kByte: return narrowGrid<uint8_t>(grid);
    case at::kChar: return narrowGrid<int8_t>(grid);
    default: return std::nullopt; // not supported by PyTorch's quantized operators
  }
}

void clampCodes(Node* node, const NarrowGrid& grid, bool contiguous) {
  std::vector<Value*> operands(node->inputs().begin(), node->inputs().end());
  operands[3] = insertConstant(node, grid.first);
  operands[4] = insertConstant(node, grid.last);
  Value* all = insertValue(node, quantize, operands, node);
  if (contiguous) {
    Value* layout = insertConstant(node, static_cast<int64_t>(at::MemoryFormat::Contiguous));
    all = insertValue(node, aten::contiguous, {all, layout}, node);
  }
  const auto bound = [&](double code) { return insertConstant(node, (code - grid.zero_point) * grid.scale); };
  const auto bounded = {all, bound(grid.low), bound(grid.high)};
  replaceNode(node, insertValue(node, aten::clamp, bounded, node));
}

bool clampAllCodes(PassContext& context) {
  const bool contiguous = context.option("contiguous").toBool();
  // All grids are found ahead of the first change: an average looks at the quantize of its operand.
  const auto found = nodesWhere(*context.graph(), [](const Node* node) {
    const auto grid = narrowGridOf(node);
    return grid && !isWithin(node, *grid);
  });
  for (Node* node : found) {
    clampCodes(node, *narrowGridOf(node), contiguous);
  }
  return !found.empty();
}

const RegisterPass clamp_codes_pass{
    "clamp_codes", "Clamp codes to a range that is narrower than their dtype.", clampAllCodes,
    needs("no_observers"), takes({{"contiguous", "bool", false}})};

} // namespace
} // namespace jit_passes
