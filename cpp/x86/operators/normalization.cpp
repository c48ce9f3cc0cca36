#include "checks.h"
#include "x86/attention.h"

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

const RegisterOperator softmax_operator{
    Kind::Softmax,
    {.name = "softmax",
     .inputs = {1, 1},
     .attributes = {1, 2},
     .tensors = {0, 0},
     .types = Types::Same,
     .check = checkSoftmax,
     .infer = sizesOfSoftmax}};
const RegisterOperator layer_norm_operator{
    Kind::LayerNorm,
    {.name = "layer_norm",
     .inputs = {1, 1},
     .attributes = {0, 0},
     .tensors = {NormTensors::Count, NormTensors::Count},
     .types = Types::Same,
     .check = checkNorm,
     .infer = sizesOfLayerNorm,
     .gives_codes = sumsCodes}};
const RegisterOperator rms_norm_operator{
    Kind::RmsNorm,
    {.name = "rms_norm",
     .inputs = {1, 1},
     .attributes = {0, 0},
     .tensors = {NormTensors::Count, NormTensors::Count},
     .types = Types::Real,
     .check = checkNorm,
     .infer = sizesOfLayerNorm}};
const RegisterOperator group_norm_operator{
    Kind::GroupNorm,
    {.name = "group_norm",
     .inputs = {1, 1},
     .attributes = {1, 1},
     .tensors = {NormTensors::Count, NormTensors::Count},
     .types = Types::Same,
     .check = checkNorm,
     .infer = sizesOfGroupNorm}};

} // namespace
} // namespace jit_passes::x86
