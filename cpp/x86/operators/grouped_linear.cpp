// Linear layers with weights of 4 or 8 bits, and a scale and maybe a zero point for each group of inputs. The weights in
// a program are packed in the order of the kernel, so they are held once, and a file has them in this form.
#include "grouped_linear.h"

#include "graph/dialect.h"
#include "passes/lowering/weight_alone.h"
#include "x86/building/from_graph.h"
#include "x86/kernels/grouped.h"
#include "x86/lowering/general.h"
#include "x86/program/checks.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {
namespace {

using A = GroupedAttributes;

constexpr int64_t kFewBits = 4, kManyBits = 8;
constexpr size_t kZeroPoints = 1; // the second tensor, if there is one
constexpr size_t kDynamicCount = size_t{A::Count} + size_t{DynamicAttributes::Count};

GroupedShape shapeOf(const Operator& op) {
  const auto& a = op.attributes;
  return {a[A::Inputs], a[A::Outputs], a[A::Group], a[A::Bits]};
}

bool isGroup(int64_t group, int64_t inputs) {
  return group == inputs || (group % GroupedShape::kInputs == 0 && inputs % group == 0);
}

void checkGrouped(const Operator& op) {
  const GroupedShape shape = shapeOf(op);
  refuseUnless(
      between(shape.inputs, 1, kMostProducts) && between(shape.outputs, 1, kMaxSize), "it has ", shape.inputs,
      " inputs and ", shape.outputs, " outputs");
  refuseUnless(
      between(shape.group, 1, shape.inputs) && isGroup(shape.group, shape.inputs), "groups of ", shape.group,
      " of ", shape.inputs, " inputs");
  refuseUnless(shape.bits == kFewBits || shape.bits == kManyBits, "weights of ", shape.bits, " bits");
  const at::Tensor& packed = op.tensors[kWeight];
  if (packed.is_meta()) {
    return; // sizes only, see RegionReader
  }
  refuseUnless(
      packed.scalar_type() == at::kByte && packed.dim() == 1 && packed.numel() == shape.bytes(),
      "its packed weights are ", shape.bytes(), " bytes, not ", packed.scalar_type(), " of the shape ",
      packed.sizes());
  const auto numbers = packed.view({shape.blocks(), shape.blockBytes()});
  const auto floats = [](const at::Tensor& bytes) { return bytes.contiguous().view(at::kFloat); };
  constexpr int64_t kHeader = 2 * GroupedShape::kOutputs * int64_t(sizeof(float));
  checkBias(floats(numbers.narrow(1, 0, kHeader)));
  const auto groups = numbers.narrow(1, kHeader, shape.groups() * shape.groupBytes())
                          .reshape({-1, shape.groupBytes()})
                          .narrow(1, 0, kHeader / 2);
  refuseUnless(at::isfinite(floats(groups)).all().item<bool>(), "a scale of its weights is not finite");
  if (op.tensors.size() > kZeroPoints) {
    const at::Tensor& zero_points = op.tensors[kZeroPoints];
    const std::array<int64_t, 3> axes{shape.blocks(), shape.groups(), GroupedShape::kOutputs};
    const at::IntArrayRef sizes(axes);
    refuseUnless(
        zero_points.scalar_type() == at::kChar && zero_points.sizes() == sizes,
        "its zero points are int8 of the shape ", sizes, ", not ", zero_points.scalar_type(), " of ",
        zero_points.sizes());
  }
}

void checkDynamicGrouped(const Operator& op) {
  checkDynamic(op);
  checkGrouped(op);
}

Sizes sizesOfGrouped(const Operands& operands) {
  const GroupedShape shape = shapeOf(operands.op);
  Sizes sizes = operands.first();
  require(
      operands.op, !sizes.empty() && sizes.back() == shape.inputs, "takes ", shape.inputs,
      " features, and got the shape ", sizes);
  sizes.back() = shape.outputs;
  return sizes;
}

// The kernel of a layer, with the addend of its result.
template <typename Run>
Part grouped(const StepContext& c, const Run& run) {
  const auto& tensors = c.op.tensors;
  const GroupedLinear kernel{
      shapeOf(c.op), tensors[kWeight].const_data_ptr<uint8_t>(),
      tensors.size() > kZeroPoints ? tensors[kZeroPoints].const_data_ptr<int8_t>() : nullptr,
      c.step.function};
  const auto addend = addendOf(c.step, c.op);
  const auto residual = addend ? std::optional(rowsOf(c.memory[*addend])) : std::nullopt;
  const Placed y = rowsOf(c.out());
  return {kernel.items(), [=, held = tensors](const Call& call, int64_t begin, int64_t end) {
            const Image other = residual ? residual->in(call) : Image{};
            GroupedLinear own = kernel;
            own.residual = residual ? &other : nullptr;
            run(own, call, y.in(call), begin, end);
          }};
}

Part floatsKernel(const StepContext& c) {
  return grouped(
      c, [x = rowsOf(c.in())](
             const GroupedLinear& kernel, const Call& call, const Image& y, int64_t begin, int64_t end) {
        kernel.run(x.in(call), y, begin, end);
      });
}

Part dynamicKernel(const StepContext& c) {
  const bool per_row = dynamicAttribute(c.op, DynamicAttributes::PerRow);
  const auto form = static_cast<RangeForm>(dynamicAttribute(c.op, DynamicAttributes::Form));
  const int64_t rows = countOf(c.out().sizes) / c.out().sizes.back(), begin_of_grids = c.in().offset;
  const GridsOfCodes grids{per_row, begin_of_grids, {per_row ? 0 : c.in(1).offset, form}, rows, rows, rows};
  const int64_t codes = begin_of_grids + (per_row ? bytesOfGrids(rows) : 0);
  return grouped(
      c, [=](const GroupedLinear& kernel, const Call& call, const Image& y, int64_t begin, int64_t end) {
        grids.with(call, [&](const RowGrid* of, bool each) {
          kernel.run(call.arena() + codes, of, each, y, begin, end);
        });
      });
}

const RegisterOperator grouped_operator{
    {.name = "linear_grouped",
     .attributes = {A::Count, A::Count},
     .tensors = {1, 2},
     .types = Types::Real,
     .most_axes = kMostMovedAxes,
     .layer = LayerKind::Linear,
     .dynamic_form = "linear_grouped_dynamic",
     .check = checkGrouped,
     .infer = sizesOfGrouped,
     .channels = lastAxisOf,
     .lower = lowerFloatLayer,
     .kernel = floatsKernel}};
// A grouped linear layer whose input is quantized at run time. Last attributes: see DynamicAttributes.
const RegisterOperator dynamic_grouped_operator{
    {.name = "linear_grouped_dynamic",
     .attributes = {kDynamicCount, kDynamicCount},
     .tensors = {1, 2},
     .types = Types::Real,
     .most_axes = kMostMovedAxes,
     .layer = LayerKind::Linear,
     .dynamic = true,
     .check = checkDynamicGrouped,
     .infer = sizesOfGrouped,
     .channels = lastAxisOf,
     .lower = lowerFloatLayer,
     .kernel = dynamicKernel}};

// A dequantized weight: int8 codes, [outputs, inputs], with scales and zero points, [outputs, groups].
struct Weight {
  at::Tensor codes, scales, zero_points; // without zero points if all are 0
  int64_t bits;
};

at::Tensor numbersOf(const RegionReader& reader, const Node* maker, const char* one, const char* each) {
  return maker->kind() == dequantize ? at::scalar_tensor(reader.number(maker, one), at::kDouble)
                                     : reader.tensor(maker, each);
}

at::Tensor zeroPointsOf(const RegionReader& reader, const Node* maker) {
  return numbersOf(reader, maker, "zero_point", "zero_points");
}

// Whether a weight needs the kernels of this file: it is in groups, or has zero points.
bool isGrouped(const RegionReader& reader, const Node* maker) {
  const bool in_channels = maker->kind() == dequantize_per_channel;
  if (!in_channels && maker->kind() != dequantize) {
    return false;
  }
  return (in_channels && reader.tensor(maker, "scales").dim() == 2) ||
         zeroPointsOf(reader, maker).any().item<bool>();
}

Weight weightOf(const RegionReader& reader, const Node* maker) {
  const at::Tensor given = reader.tensor(maker, "q");
  refuseUnless(given.element_size() == 1, "its weights are ", given.scalar_type(), ", not int8 or uint8");
  refuseUnless(given.dim() == 2 && given.numel() > 0, "its weight is no matrix");
  const int64_t outputs = given.size(0);
  refuseUnless(
      maker->kind() == dequantize || reader.integer(maker, "axis") == 0,
      "its weights have no scale for each result");
  const bool is_signed = given.scalar_type() == at::kChar;
  const int64_t low = is_signed ? -8 : 0;
  const bool few = given.min().item<int64_t>() >= low && given.max().item<int64_t>() <= low + 15;
  const int64_t bits = few ? kFewBits : kManyBits, middle = is_signed ? 0 : int64_t{1} << (bits - 1);
  const auto inEachGroup = [&](const at::Tensor& numbers) {
    return (numbers.dim() == 0 ? numbers.expand({outputs, 1}) : numbers.reshape({outputs, -1})).contiguous();
  };
  const at::Tensor zero_points = inEachGroup(zeroPointsOf(reader, maker)) - middle;
  refuseUnless(
      zero_points.ge(-128).all().item<bool>() && zero_points.le(127).all().item<bool>(),
      "a zero point of its weights is not between the codes");
  return {
      (given.to(at::kShort) - middle).to(at::kChar).contiguous(),
      inEachGroup(numbersOf(reader, maker, "scale", "scales")).to(at::kFloat).contiguous(),
      zero_points.any().item<bool>() ? zero_points.to(at::kChar) : at::Tensor(), bits};
}

// Zero points in the order of the kernel: [blocks][groups][outputs of a block].
at::Tensor packedZeroPoints(const GroupedShape& shape, const at::Tensor& zero_points) {
  const int64_t padded = shape.blocks() * GroupedShape::kOutputs;
  return at::constant_pad_nd(zero_points, {0, 0, 0, padded - shape.outputs})
      .reshape({shape.blocks(), GroupedShape::kOutputs, shape.groups()})
      .transpose(1, 2)
      .contiguous();
}

} // namespace

std::optional<Planned> groupedLinear(const RegionReader& reader, Node* node) {
  const Node* maker = operandOf(node, "weight")->node();
  if (!weightAlone(node) && !isGrouped(reader, maker)) {
    return std::nullopt;
  }
  const Weight weight = weightOf(reader, maker);
  const int64_t outputs = weight.codes.size(0), inputs = weight.codes.size(1);
  const int64_t group = inputs / weight.scales.size(1);
  refuseUnless(
      isGroup(group, inputs), "its weights are in groups of ", group,
      ", and a plan has groups of a multiple of ", GroupedShape::kInputs);
  refuseUnless(inputs <= kMostProducts, "it has ", inputs, " inputs, and sums of products may leave int32");
  const GroupedShape shape{inputs, outputs, group, weight.bits};
  const at::Tensor bias = reader.bias(operandOf(node, "bias"), outputs);
  std::vector<at::Tensor> tensors{
      at::empty({shape.bytes()}, at::dtype(at::kByte).device(reader.isSized() ? at::kMeta : at::kCPU))};
  const bool affine = weight.zero_points.defined();
  if (affine) {
    tensors.push_back(packedZeroPoints(shape, weight.zero_points));
  }
  if (!reader.isSized()) {
    packGrouped(
        shape, weight.codes.const_data_ptr<int8_t>(), weight.scales.const_data_ptr<float>(),
        affine ? tensors[kZeroPoints].const_data_ptr<int8_t>() : nullptr, bias.const_data_ptr<float>(),
        tensors[kWeight].mutable_data_ptr<uint8_t>());
  }
  return withChoice(
      reader, node,
      {{Kind("linear_grouped"), "", {}, 0, {inputs, outputs, group, shape.bits}, std::move(tensors)},
       {node->input(0)}});
}

} // namespace jit_passes::x86
