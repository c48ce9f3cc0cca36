#include "checks.h"
#include "from_graph.h"
#include "x86/attention.h"
#include "x86/lowering.h"

namespace jit_passes::x86 {
namespace {

void checkSoftmax(const Operator& op) {
  requireForm(op, op.attributes.size() < 2 || between(op.attributes[1], 0, 1), "what it hides is 0 or 1");
  checkAxesFrom(op, 0);
}

Sizes sizesOfSoftmax(const Operands& operands) {
  checkAxis(operands.op, operands.op.attributes[0], operands.first().size(), operands.first());
  return operands.first();
}

void checkNorm(const Operator& op) {
  for (const size_t i : {NormTensors::Weight, NormTensors::Bias}) {
    const at::Tensor& numbers = op.tensors[i];
    requireForm(
        op,
        numbers.scalar_type() == at::kFloat && numbers.dim() == 1 &&
            numbers.numel() == op.tensors[0].numel() && at::isfinite(numbers).all().item<bool>(),
        "weight and bias are finite numbers of float32, one for each channel");
  }
  const int64_t channels = op.tensors[0].numel(), groups = op.attributes.empty() ? 1 : op.attributes[0];
  requireForm(
      op, between(channels, 1, kMaxSize) && between(groups, 1, channels) && channels % groups == 0, "it has ",
      channels, " channels in ", groups, " groups");
  checkNumbers(op, op.tensors[NormTensors::Eps], 1, "what is added to the variance");
  requireForm(
      op, op.tensors[NormTensors::Eps].item<double>() > 0, "what is added to the variance is not above 0");
}

Sizes normalized(const Operands& operands, int64_t axis) {
  const int64_t channels = operands.op.tensors[NormTensors::Weight].numel();
  const Sizes& first = operands.first();
  require(
      operands.op, axis >= 0 && axis < int64_t(first.size()) && first[axis] == channels, "takes ", channels,
      " features, and got the shape ", first);
  return first;
}

Sizes sizesOfLayerNorm(const Operands& operands) {
  return normalized(operands, int64_t(operands.first().size()) - 1);
}

Sizes sizesOfGroupNorm(const Operands& operands) {
  const Sizes sizes = normalized(operands, kAffineAxis);
  const int64_t images = std::max<int64_t>(sizes[0], 1), count = countOf(sizes) / images;
  require(operands.op, count > 0 || sizes[0] == 0, "is a mean of no values for the shape ", sizes);
  return sizes;
}

// Sums of more codes than that would leave int32.
bool sumsCodes(const Operator& op) { return op.tensors[NormTensors::Weight].numel() <= kMostNormalized; }

Planned softmax(const Reader& reader, Node* node) {
  refuseUnless(
      !reader.has(node, "dtype") || reader.operand(node, "dtype").toInt() == static_cast<int64_t>(at::kFloat),
      "it changes the dtype");
  const bool hides = node->kind() != c10::aten::softmax;
  return {{Kind::Softmax, "", {}, 0, {reader.operand(node, "dim").toInt(), hides}, {}}, {node->input(0)}};
}

// The tensors of a norm over so many channels.
std::vector<at::Tensor> normTensors(const Reader& reader, const Node* node, int64_t channels) {
  const auto numbers = [&](const char* name, double unless) {
    if (!reader.has(node, name)) {
      return at::full({channels}, unless, at::kFloat);
    }
    const auto given = reader.operand(node, name).toTensor().detach().to(at::kFloat).contiguous();
    refuseUnless(at::isfinite(given).all().item<bool>(), "its operand '", name, "' is not finite");
    return given;
  };
  const double eps =
      reader.has(node, "eps") ? reader.number(node, "eps") : std::numeric_limits<float>::epsilon();
  refuseUnless(eps > 0, "it adds ", eps, " to the variance, and a plan needs a number above 0");
  return {numbers("weight", 1), numbers("bias", 0), at::full({1}, eps, at::kDouble)};
}

Planned normOfRows(Kind kind, const Reader& reader, Node* node) {
  const auto shape = reader.operand(node, "normalized_shape").toIntVector();
  refuseUnless(
      shape.size() == 1, "it goes over ", shape.size(), " axes, and a plan has it over the last one");
  return {{kind, "", {}, 0, {}, normTensors(reader, node, shape[0])}, {node->input(0)}};
}

Planned layerNorm(const Reader& reader, Node* node) { return normOfRows(Kind::LayerNorm, reader, node); }

// PyTorch has no bias for it.
Planned rmsNorm(const Reader& reader, Node* node) { return normOfRows(Kind::RmsNorm, reader, node); }

Planned groupNorm(const Reader& reader, Node* node) {
  refuseUnless(reader.has(node, "weight"), "it has no weight, by which its channels are known");
  const int64_t channels = reader.operand(node, "weight").toTensor().numel();
  const int64_t groups = reader.operand(node, "num_groups").toInt();
  return {{Kind::GroupNorm, "", {}, 0, {groups}, normTensors(reader, node, channels)}, {node->input(0)}};
}

const RegisterOperator softmax_operator{
    Kind::Softmax,
    {.name = "softmax",
     .attributes = {1, 2},
     .types = Types::Same,
     .from = {{"softmax", softmax}, {"_safe_softmax", softmax}},
     .check = checkSoftmax,
     .infer = sizesOfSoftmax,
     .channels = axisOfAttribute,
     .lower = &Lowering::lowerRows,
     .step = Does::Softmax}};
const RegisterOperator layer_norm_operator{
    Kind::LayerNorm,
    {.name = "layer_norm",
     .tensors = {NormTensors::Count, NormTensors::Count},
     .types = Types::Same,
     .from = {{"layer_norm", layerNorm}},
     .check = checkNorm,
     .infer = sizesOfLayerNorm,
     .gives_codes = sumsCodes,
     .channels = lastAxisOf,
     .lower = &Lowering::lowerRows,
     .step = Does::Normalize}};
const RegisterOperator rms_norm_operator{
    Kind::RmsNorm,
    {.name = "rms_norm",
     .tensors = {NormTensors::Count, NormTensors::Count},
     .types = Types::Real,
     .from = {{"rms_norm", rmsNorm}},
     .check = checkNorm,
     .infer = sizesOfLayerNorm,
     .channels = lastAxisOf,
     .lower = &Lowering::lowerRows,
     .step = Does::Normalize}};
const RegisterOperator group_norm_operator{
    Kind::GroupNorm,
    {.name = "group_norm",
     .attributes = {1, 1},
     .tensors = {NormTensors::Count, NormTensors::Count},
     .types = Types::Same,
     .from = {{"group_norm", groupNorm}},
     .check = checkNorm,
     .infer = sizesOfGroupNorm,
     .channels = secondAxis,
     .lower = &Lowering::lowerChannels,
     .step = Does::NormalizeGroups}};

} // namespace
} // namespace jit_passes::x86
