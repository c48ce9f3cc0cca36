#include "checks.h"
#include "sizes.h"

namespace jit_passes::x86 {
namespace {

// Convolutions that a transposed one falls into.
constexpr int64_t kMaxResidues = 4096;

void checkConvolution(const Operator& op) {
  using A = ConvolutionAttributes;
  const auto& a = op.attributes;
  checkWeights(op, 5);
  checkSum(op);
  const auto& weight = op.tensors[kWeight];
  checkSpatial(op, a[A::Spatial]);
  requireForm(
      op, between(a[A::Groups], 1, weight.size(0)) && weight.size(0) % a[A::Groups] == 0, weight.size(0),
      " results in ", a[A::Groups], " groups");
  const bool transposed = isTransposed(op.kind);
  int64_t residues = 1;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t kernel = weight.size(2 + i);
    const bool used = i + a[A::Spatial] >= 3;
    checkWindow(op, used, kernel, a[A::Stride + i], a[A::PadBefore + i], a[A::Dilation + i]);
    const int64_t most = used ? kMostWindow : 0;
    requireForm(
        op, between(a[A::PadAfter + i], transposed ? -most : 0, most), "a padding of ", a[A::PadAfter + i]);
    residues *= a[A::Stride + i];
  }
  requireForm(
      op, !transposed || residues <= kMaxResidues, "strides of a product of ", residues, ", more than ",
      kMaxResidues);
}

void checkDynamicConvolution(const Operator& op) {
  checkDynamic(op);
  checkConvolution(op);
}

// The operand's, with the channels of the result, and `along` of each spatial axis and its size.
template <typename Along>
Sizes windowed(const Operands& operands, const Along& along) {
  using A = ConvolutionAttributes;
  const Operator& op = operands.op;
  const auto& a = op.attributes;
  const auto& weight = op.tensors[kWeight];
  const size_t axis = spatialAxis(operands, a[A::Spatial]), unused = 3 - a[A::Spatial];
  Sizes sizes = operands.first();
  const int64_t channels = weight.size(1) * a[A::Groups];
  require(op, sizes[axis - 1] == channels, "takes ", channels, " channels, and got the shape ", sizes);
  sizes[axis - 1] = weight.size(0);
  for (size_t i = unused; i < 3; ++i) {
    int64_t& size = sizes[axis + i - unused];
    size = along(i, size, a[A::Dilation + i] * (weight.size(2 + i) - 1) + 1);
  }
  return sizes;
}

Sizes sizesOfConvolution(const Operands& operands) {
  using A = ConvolutionAttributes;
  const Operator& op = operands.op;
  const auto& a = op.attributes;
  const Sizes own = windowed(operands, [&](size_t i, int64_t size, int64_t window) {
    const int64_t padded = size + a[A::PadBefore + i] + a[A::PadAfter + i];
    require(
        op, padded >= window, "has a window larger than its padded input of the shape ", operands.first());
    return (padded - window) / a[A::Stride + i] + 1;
  });
  return operands.sizes.size() > 1 ? broadcast(op, own, operands[1]) : own;
}

Sizes sizesOfTransposed(const Operands& operands) {
  using A = ConvolutionAttributes;
  const Operator& op = operands.op;
  const auto& a = op.attributes;
  return windowed(operands, [&](size_t i, int64_t size, int64_t window) {
    const int64_t whole = (size - 1) * a[A::Stride + i] + window;
    const int64_t left = whole - a[A::PadBefore + i] - a[A::PadAfter + i];
    require(op, left > 0, "has paddings that cut off all of its result for the shape ", operands.first());
    return left;
  });
}

constexpr size_t kOwn = ConvolutionAttributes::Count, kDynamic = kOwn + DynamicAttributes::Count;

const RegisterOperator convolution_operator{
    Kind::Convolution,
    {.name = "convolution",
     .inputs = {1, 2},
     .attributes = {kOwn, kOwn},
     .tensors = {3, 4},
     .check = checkConvolution,
     .infer = sizesOfConvolution}};
const RegisterOperator transposed_operator{
    Kind::TransposedConvolution,
    {.name = "transposed_convolution",
     .inputs = {1, 1},
     .attributes = {kOwn, kOwn},
     .tensors = {3, 3},
     .check = checkConvolution,
     .infer = sizesOfTransposed}};
const RegisterOperator dynamic_convolution_operator{
    Kind::DynamicConvolution,
    {.name = "convolution_dynamic",
     .inputs = {1, 1},
     .attributes = {kDynamic, kDynamic},
     .tensors = {3, 3},
     .types = Types::Real,
     .check = checkDynamicConvolution,
     .infer = sizesOfConvolution}};
const RegisterOperator dynamic_transposed_operator{
    Kind::DynamicTransposedConvolution,
    {.name = "transposed_convolution_dynamic",
     .inputs = {1, 1},
     .attributes = {kDynamic, kDynamic},
     .tensors = {3, 3},
     .types = Types::Real,
     .check = checkDynamicConvolution,
     .infer = sizesOfTransposed}};

} // namespace
} // namespace jit_passes::x86
