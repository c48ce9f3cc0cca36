#include "convolution.h"

#include "graph/operators.h"

namespace jit_passes {

std::optional<int64_t> Convolution::knownDims(const KnownValues& known) const {
  if (const auto rank = known.rank(weight)) {
    return *rank - 2;
  }
  std::optional<int64_t> longest; // an empty optional is less than any number
  for (const Value* list : {stride, padding, dilation, output_padding}) {
    longest = list == nullptr ? longest : std::max(longest, known.length(list));
  }
  return longest;
}

Value* Convolution::insert(std::optional<int64_t> dims, Node* before, const Node* like) const {
  const auto backward =
      transposed == nullptr ? std::optional(double(is_transposed)) : constantNumber(transposed);
  if (!dims || *dims < 1 || *dims > kMostSpatialDims || !backward) {
    return nullptr;
  }
  Value* b = bias != nullptr ? bias : insertConstant(before, {});
  std::vector<Value*> operands{input, weight, b, stride, padding, dilation, groups};
  if (*backward != 0.0) {
    operands = {input, weight, b, stride, padding, output_padding, groups, dilation};
  }
  const auto name = std::string(*backward != 0.0 ? "aten::conv_transpose" : "aten::conv");
  return insertValue(before, symbol(name + std::to_string(*dims) + "d"), operands, like);
}

Convolution operandsOfConvolution(const Node* node) {
  const auto of = [&](const char* name) { return operandOf(node, name); };
  return Convolution{of("input"),    of("weight"), of("bias"),           of("stride"),    of("padding"),
                     of("dilation"), of("groups"), of("output_padding"), of("transposed")};
}

std::optional<Convolution> readConvolution(const Node* node) {
  static const auto others = symbols({"aten::_convolution_mode", "aten::_convolution", "aten::convolution"});
  const auto op = weightedOperator(node);
  if (others.count(node->kind()) == 0 && !(op && op->spatial_dims > 0)) {
    return std::nullopt;
  }
  Convolution found = operandsOfConvolution(node);
  found.is_transposed = op && op->transposed;
  found.spatial_dims = op ? op->spatial_dims : 0;
  return found;
}

Node* convolutionBehind(Value* value) {
  while (true) {
    Node* node = value->node();
    if (const auto weighted = weightedOperator(node)) {
      return weighted->spatial_dims > 0 ? node : nullptr;
    }
    if (!isElementwise(node) || std::ranges::count_if(node->inputs(), isTensor) != 1 ||
        mainOperand(node)->uses().size() != 1 ||
        mainOperand(node)->node()->owningBlock() != node->owningBlock()) {
      return nullptr;
    }
    value = mainOperand(node);
  }
}

bool hasVolumes(Graph& graph) {
  const auto is_3d = [](const Node* node) {
    return std::string_view(node->kind().toUnqualString()).find("3d") != std::string_view::npos;
  };
  return !nodesWhere(graph, is_3d).empty();
}

namespace {

// PyTorch 2.13 returns uninitialized memory for a volume in the channels-last layout whose size does not change.
bool mayStayAsLarge(const Node* node) {
  static const auto resizes = symbol("aten::upsample_nearest3d");
  if (node->kind() != resizes) {
    return false;
  }
  const Value* factors = operandOf(node, "scale_factors");
  const auto known = factors != nullptr ? constantOf(factors) : std::nullopt;
  const auto doubles = [](double factor) { return factor >= 2; };
  return !known || !known->isDoubleList() || std::ranges::none_of(known->toDoubleVector(), doubles);
}

} // namespace

bool movesQuantizedData(const Node* node, bool volumes) {
  const bool pads = node->kind() == aten::constant_pad_nd || node->kind() == aten::pad;
  return movesData(node) && !(pads && volumes) && !mayStayAsLarge(node);
}

} // namespace jit_passes
