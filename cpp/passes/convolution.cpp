#include "convolution.h"

#include "core/operators.h"
#include "core/places.h"

namespace jit_passes {

std::optional<int64_t> Convolution::knownDims(const KnownValues& known) const {
  if (const auto rank = known.rank(weight)) {
    return *rank - 2;
  }
  std::optional<int64_t> longest; // nothing is less than any number
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

std::optional<Convolution> readConvolution(Node* node) {
  static const auto by_mode = symbol("aten::_convolution_mode");
  const auto in = node->inputs();
  const auto op = weightedOperator(node);
  const int64_t dims = op ? op->spatial_dims : 0;
  if (dims > 0 && op->transposed) {
    return Convolution{in[0], in[1], in[2], in[3], in[4], in[7], in[6], in[5], nullptr, true, dims};
  }
  if (dims > 0 || node->kind() == by_mode) {
    return Convolution{in[0], in[1], in[2], in[3], in[4], in[5], in[6], nullptr, nullptr, false, dims};
  }
  if (node->kind() == aten::_convolution || node->kind() == aten::convolution) {
    return Convolution{in[0], in[1], in[2], in[3], in[4], in[5], in[8], in[7], in[6]};
  }
  return std::nullopt;
}

Node* convolutionBehind(Value* value) {
  while (true) {
    Node* node = value->node();
    if (const auto weighted = weightedOperator(node)) {
      return weighted->spatial_dims > 0 ? node : nullptr;
    }
    if (!isElementwise(node) || std::ranges::count_if(node->inputs(), isTensor) != 1 ||
        node->input(0)->uses().size() != 1 || node->input(0)->node()->owningBlock() != node->owningBlock()) {
      return nullptr;
    }
    value = node->input(0);
  }
}

bool hasVolumes(Graph& graph) {
  const auto is_3d = [](const Node* node) {
    return std::string_view(node->kind().toUnqualString()).find("3d") != std::string_view::npos;
  };
  return !nodesWhere(graph, is_3d).empty();
}

namespace {

// Of a volume in the channels-last layout that stays as large as it is, PyTorch 2.13 gives whatever memory holds.
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
