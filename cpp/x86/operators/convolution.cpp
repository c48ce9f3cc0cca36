#include "graph/places.h"
#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/general.h"
#include "x86/program/checks.h"

namespace jit_passes::x86 {

const Kind Kind::Convolution("convolution");
const Kind Kind::TransposedConvolution("transposed_convolution");

namespace {

// A limit for the convolutions of stride 1 that replace a transposed one.
constexpr int64_t kMaxResidues = 4096;

void checkConvolution(const Operator& op) {
  using A = ConvolutionAttributes;
  const auto& a = op.attributes;
  checkWeights(op, 5);
  checkSum(op);
  const auto& weight = op.tensors[kWeight];
  checkSpatial(a[A::Spatial]);
  refuseUnless(
      between(a[A::Groups], 1, weight.size(0)) && weight.size(0) % a[A::Groups] == 0, weight.size(0),
      " results in ", a[A::Groups], " groups");
  const bool transposed = isTransposed(op.kind);
  int64_t residues = 1;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t kernel = weight.size(2 + i);
    const bool used = i + a[A::Spatial] >= 3;
    checkWindow(used, kernel, a[A::Stride + i], a[A::PadBefore + i], a[A::Dilation + i]);
    const int64_t most = used ? kMostWindow : 0;
    refuseUnless(
        between(a[A::PadAfter + i], transposed ? -most : 0, most), "a padding of ", a[A::PadAfter + i]);
    residues *= a[A::Stride + i];
  }
  refuseUnless(!transposed || residues <= kMaxResidues, "it falls into more than ", kMaxResidues, " parts");
}

void checkDynamicConvolution(const Operator& op) {
  checkDynamic(op);
  checkConvolution(op);
}

// The operand's sizes, with the channels of the result, and with `along(axis, size)` for each spatial axis.
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

// An operator with a window. The weight gets three spatial axes.
template <size_t Spatial>
Planned windowed(
    const RegionReader& reader, Node* node, Kind kind, const std::vector<int64_t>& before,
    const std::vector<int64_t>& after, std::vector<at::Tensor> tensors) {
  using A = ConvolutionAttributes;
  std::vector<int64_t> a(A::Count);
  a[A::Spatial] = Spatial, a[A::Groups] = reader.integer(node, "groups");
  setLast(a, A::Stride, reader.integers(node, "stride", Spatial), 1);
  setLast(a, A::Dilation, reader.integers(node, "dilation", Spatial), 1);
  setLast(a, A::PadBefore, before, 0), setLast(a, A::PadAfter, after, 0);
  at::Tensor& weight = tensors[kWeight];
  auto sizes = weight.sizes().vec();
  sizes.insert(sizes.begin() + 2, 3 - Spatial, 1);
  weight = weight.reshape(sizes);
  return {{kind, "", {}, 0, a, std::move(tensors)}, {node->input(0)}};
}

template <size_t Spatial>
Planned convolution(const RegionReader& reader, Node* node) {
  auto tensors = weighted(reader, node);
  const at::Tensor& weight = tensors[kWeight];
  refuseUnless(weight.dim() == int64_t(Spatial) + 2, "its weight has ", weight.dim(), " axes");
  const auto dilation = reader.integers(node, "dilation", Spatial);
  std::vector<int64_t> before, after;
  const auto padding = reader.operand(node, "padding");
  if (padding.isString()) {
    const bool same = padding.toStringRef() == "same";
    refuseUnless(same || padding.toStringRef() == "valid", "its padding is '", padding.toStringRef(), "'");
    for (size_t i = 0; i < Spatial; ++i) {
      const int64_t total = same ? dilation[i] * (weight.size(2 + i) - 1) : 0;
      before.push_back(total / 2), after.push_back(total - total / 2);
    }
  } else {
    before = after = reader.integers(node, "padding", Spatial);
  }
  return withChoice(reader, node, windowed<Spatial>(reader, node, Kind::Convolution, before, after, tensors));
}

// Turns weights [in, out / groups, ...], whose groups are along the first axis, into [out, in / groups, ...].
template <size_t Spatial>
Planned transposedConvolution(const RegionReader& reader, Node* node) {
  const auto [given, scales] = reader.weights(operandOf(node, "weight"), 1);
  const int64_t groups = reader.integer(node, "groups");
  refuseUnless(
      given.dim() == int64_t(Spatial) + 2 && groups > 0 && given.size(0) % groups == 0,
      "its weight of the shape ", given.sizes(), " has another form");
  const auto weight = given.unflatten(0, {groups, -1}).transpose(1, 2).flatten(0, 1).contiguous();
  const auto before = reader.integers(node, "padding", Spatial);
  auto after = before;
  const auto more = reader.integers(node, "output_padding", Spatial);
  std::ranges::transform(before, more, after.begin(), std::minus());
  const auto bias = reader.bias(operandOf(node, "bias"), weight.size(0));
  auto planned = windowed<Spatial>(
      reader, node, Kind::TransposedConvolution, before, after, {weight, scales.repeat({groups}), bias});
  return withChoice(reader, node, std::move(planned));
}

// Attributes: see ConvolutionAttributes.
const RegisterOperator convolution_operator{
    {.name = "convolution",
     .inputs = {1, 2},
     .attributes = {kOwn, kOwn},
     .tensors = {3, 4},
     .layer = LayerKind::Convolution,
     .in_floats = "convolution_to_floats",
     .dynamic_form = "convolution_dynamic",
     .from = {{"conv1d", convolution<1>}, {"conv2d", convolution<2>}, {"conv3d", convolution<3>}},
     .check = checkConvolution,
     .infer = sizesOfConvolution,
     .channels = axisInFront,
     .lower = lowerWithTable,
     .step = Does::Convolve}};
// A convolution whose result is float32. Attributes: see ConvolutionAttributes.
const RegisterOperator float_convolution_operator{
    {.name = "convolution_to_floats",
     .attributes = {kOwn, kOwn},
     .tensors = {3, 3},
     .types = Types::ToFloats,
     .layer = LayerKind::Convolution,
     .check = checkConvolution,
     .infer = sizesOfConvolution,
     .channels = axisInFront,
     .lower = lowerFloatLayer,
     .step = Does::ToFloats}};
// Attributes: see ConvolutionAttributes.
const RegisterOperator transposed_operator{
    {.name = "transposed_convolution",
     .attributes = {kOwn, kOwn},
     .tensors = {3, 3},
     .layer = LayerKind::TransposedConvolution,
     .dynamic_form = "transposed_convolution_dynamic",
     .from =
         {{"conv_transpose1d", transposedConvolution<1>},
          {"conv_transpose2d", transposedConvolution<2>},
          {"conv_transpose3d", transposedConvolution<3>}},
     .check = checkConvolution,
     .infer = sizesOfTransposed,
     .channels = axisInFront,
     .lower = lowerWithTable,
     .step = Does::ConvolveTransposed}};
// A convolution whose input is quantized at run time. Attributes: ConvolutionAttributes, then DynamicAttributes.
const RegisterOperator dynamic_convolution_operator{
    {.name = "convolution_dynamic",
     .attributes = {kDynamic, kDynamic},
     .tensors = {3, 3},
     .types = Types::Real,
     .layer = LayerKind::Convolution,
     .dynamic = true,
     .check = checkDynamicConvolution,
     .infer = sizesOfConvolution,
     .channels = axisInFront,
     .lower = lowerFloatLayer,
     .step = Does::ToFloats}};
// A transposed convolution whose input is quantized at run time.
const RegisterOperator dynamic_transposed_operator{
    {.name = "transposed_convolution_dynamic",
     .attributes = {kDynamic, kDynamic},
     .tensors = {3, 3},
     .types = Types::Real,
     .layer = LayerKind::TransposedConvolution,
     .dynamic = true,
     .check = checkDynamicConvolution,
     .infer = sizesOfTransposed,
     .channels = axisInFront,
     .lower = lowerFloatLayer,
     .step = Does::ToFloats}};

} // namespace
} // namespace jit_passes::x86
