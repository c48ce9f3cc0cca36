// Linear layers with weights of 4 or 8 bits and a scale for each group of inputs. The weights in a program are
// packed in the order of the kernel, so they are held once, and a file has them in this form.
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
  const GroupedLinear kernel{shapeOf(c.op), c.op.tensors[kWeight].const_data_ptr<uint8_t>(), c.step.function};
  const auto addend = addendOf(c.step, c.op);
  const auto residual = addend ? std::optional(rowsOf(c.memory[*addend])) : std::nullopt;
  const Placed y = rowsOf(c.out());
  return {kernel.items(), [=, held = c.op.tensors[kWeight]](const Call& call, int64_t begin, int64_t end) {
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
     .tensors = {1, 1},
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
     .tensors = {1, 1},
     .types = Types::Real,
     .most_axes = kMostMovedAxes,
     .layer = LayerKind::Linear,
     .dynamic = true,
     .check = checkDynamicGrouped,
     .infer = sizesOfGrouped,
     .channels = lastAxisOf,
     .lower = lowerFloatLayer,
     .kernel = dynamicKernel}};

} // namespace

namespace {

// The scales of a dequantized weight, [outputs, groups].
at::Tensor scalesOf(const RegionReader& reader, const Node* maker, int64_t outputs) {
  const bool one = maker->kind() == dequantize;
  refuseUnless(one || reader.integer(maker, "axis") == 0, "its weights have no scale for each result");
  const auto zeros =
      one ? at::scalar_tensor(reader.number(maker, "zero_point")) : reader.tensor(maker, "zero_points");
  refuseUnless(zeros.eq(0).all().item<bool>(), "its weights have zero points");
  const auto scales =
      one ? at::full({outputs}, reader.number(maker, "scale"), at::kDouble) : reader.tensor(maker, "scales");
  return scales.to(at::kFloat).reshape({outputs, -1}).contiguous();
}

bool hasGroups(const RegionReader& reader, const Node* maker) {
  return maker->kind() == dequantize_per_channel && reader.tensor(maker, "scales").dim() == 2;
}

} // namespace

std::optional<Planned> groupedLinear(const RegionReader& reader, Node* node) {
  const Node* maker = operandOf(node, "weight")->node();
  if (!weightAlone(node) && !hasGroups(reader, maker)) {
    return std::nullopt;
  }
  const at::Tensor codes = reader.tensor(maker, "q").contiguous();
  refuseUnless(codes.scalar_type() == at::kChar, "its weights are not int8");
  refuseUnless(codes.dim() == 2 && codes.numel() > 0, "its weight is no matrix");
  const int64_t outputs = codes.size(0), inputs = codes.size(1);
  const at::Tensor scales = scalesOf(reader, maker, outputs);
  const int64_t group = inputs / scales.size(1);
  refuseUnless(
      isGroup(group, inputs), "its weights are in groups of ", group,
      ", and a plan has groups of a multiple of ", GroupedShape::kInputs);
  refuseUnless(inputs <= kMostProducts, "it has ", inputs, " inputs, and sums of products may leave int32");
  const bool few = codes.min().item<int64_t>() >= -8 && codes.max().item<int64_t>() <= 7;
  const GroupedShape shape{inputs, outputs, group, few ? kFewBits : kManyBits};
  const at::Tensor bias = reader.bias(operandOf(node, "bias"), outputs);
  const at::Tensor packed =
      at::empty({shape.bytes()}, at::dtype(at::kByte).device(reader.isSized() ? at::kMeta : at::kCPU));
  if (!reader.isSized()) {
    packGrouped(
        shape, codes.const_data_ptr<int8_t>(), scales.const_data_ptr<float>(), bias.const_data_ptr<float>(),
        packed.mutable_data_ptr<uint8_t>());
  }
  return withChoice(
      reader, node,
      {{Kind("linear_grouped"), "", {}, 0, {inputs, outputs, group, shape.bits}, {packed}},
       {node->input(0)}});
}

} // namespace jit_passes::x86
