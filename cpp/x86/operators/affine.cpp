// A factor and an offset for each channel.
#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {
namespace {

const Kind affine_kind("affine");

// factor * x + bias - mean * factor, with factor = weight / sqrt(var + eps).
Planned batchNorm(const RegionReader& reader, Node* node) {
  reader.refuseTraining(node, "training");
  const auto numbers = [&](const char* name) {
    const auto value = reader.operand(node, name);
    refuseUnless(value.isTensor() && value.toTensor().dim() == 1, "its operand '", name, "' is not given");
    return value.toTensor().detach().to(at::kDouble);
  };
  const auto mean = numbers("running_mean");
  auto factor = at::rsqrt(numbers("running_var") + reader.number(node, "eps"));
  factor = reader.has(node, "weight") ? factor * numbers("weight") : factor;
  auto bias = -mean * factor;
  bias = reader.has(node, "bias") ? bias + numbers("bias") : bias;
  refuseUnless(
      at::logical_and(at::isfinite(factor), at::isfinite(bias)).all().item<bool>(),
      "its numbers are not finite");
  const auto scales = at::where(factor == 0, 1.0, factor.abs());
  return {
      {affine_kind, "", {}, 0, {}, {factor.sign().to(at::kChar).unsqueeze(1), scales, bias.to(at::kFloat)}},
      {node->input(0)}};
}

void checkAffine(const Operator& op) {
  checkWeights(op, 2);
  refuseUnless(op.tensors[kWeight].size(1) == 1, "a channel has more than one factor");
}

void checkOneInFloats(const Operator& op, const Program& program) {
  refuseUnless(
      op.inputs.size() == 1 || !program.grids[op.output].is_float, "it scales several values in float32");
}

Sizes sizesOfAffine(const Operands& operands) {
  const Operator& op = operands.op;
  const int64_t channels = op.tensors[kWeight].size(0);
  const Sizes& of = firstShaped(operands);
  require(op, of.size() > kAffineAxis, "takes ", channels, " channels, and got the shape ", of);
  const Sizes sizes = joined(operands, kAffineAxis);
  require(op, sizes[kAffineAxis] == channels, "takes ", channels, " channels, and got the shape ", sizes);
  return sizes;
}

// The kernel in float32.
Part affineKernel(const StepContext& c) {
  const at::Tensor signs = c.op.tensors[kWeight].flatten().to(at::kDouble);
  const at::Tensor factors = (signs * c.op.tensors[kWeightScales]).to(at::kFloat), bias = c.op.tensors[kBias];
  const Dims dims = axisDims(c.out().sizes, c.out().axis);
  const Placed x = image(c.in(), dims), y = image(c.out(), dims);
  const ScaleFloats kernel{factors.const_data_ptr<float>(), bias.const_data_ptr<float>()};
  return {kernel.items(y.image), [=](const Call& call, int64_t begin, int64_t end) {
            (void)factors; // the part keeps them
            kernel.run(x.in(call), y.in(call), begin, end);
          }};
}

void lowerAffine(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const auto operands = state.wantAll(op);
  if (state.program.grids[op.output].is_float) {
    return state.emit(Does::Compute, index, operands, kAffineAxis);
  }
  const bool several = operands.size() > 1;
  const size_t input = several ? state.joins.place(state.result, index, operands, kAffineAxis) : operands[0];
  state.emitWithTable(Does::Convolve, index, {input}, kAffineAxis);
}

// A factor and an offset for each channel along axis 1, of several values in codes joined along it, or of one value
// in float32. Weights are -1, 0 or 1.
const RegisterOperator affine_operator{
    {.name = "affine",
     .inputs = {1, 4096},
     .tensors = {3, 3},
     .types = Types::Same,
     .layer = LayerKind::Affine,
     .from = {{"batch_norm", batchNorm}},
     .check = checkAffine,
     .check_values = checkOneInFloats,
     .infer = sizesOfAffine,
     .joins = secondAxis,
     .channels = secondAxis,
     .lower = lowerAffine,
     .kernel = affineKernel}};

} // namespace
} // namespace jit_passes::x86
