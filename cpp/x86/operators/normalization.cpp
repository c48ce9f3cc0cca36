#include "x86/building/from_graph.h"
#include "x86/kernels/attention.h"
#include "x86/lowering/general.h"
#include "x86/program/checks.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {
namespace {

void checkSoftmax(const Operator& op) {
  refuseUnless(
      op.attributes.size() < 2 || between(op.attributes[1], 0, 1),
      "whether minus infinities give zeros is 0 or 1");
  checkAxesFrom(op, 0);
}

Sizes sizesOfSoftmax(const Operands& operands) {
  checkAxis(operands.op, operands.op.attributes[0], operands.first().size(), operands.first());
  return operands.first();
}

void checkNorm(const Operator& op) {
  for (const size_t i : {NormTensors::Weight, NormTensors::Bias}) {
    const at::Tensor& numbers = op.tensors[i];
    refuseUnless(
        numbers.scalar_type() == at::kFloat && numbers.dim() == 1 &&
            numbers.numel() == op.tensors[0].numel() && at::isfinite(numbers).all().item<bool>(),
        "weight and bias are finite numbers of float32, one for each channel");
  }
  const int64_t channels = op.tensors[0].numel(), groups = op.attributes.empty() ? 1 : op.attributes[0];
  const bool divides = groups == 0 || channels == 1 || channels % groups == 0;
  refuseUnless(
      between(channels, 1, kMaxSize) && between(groups, 0, kMaxSize) && divides, "it has ", channels,
      " channels in ", groups, " groups");
  checkNumbers(op.tensors[NormTensors::Eps], 1, "the numbers of eps");
  refuseUnless(op.tensors[NormTensors::Eps].item<double>() > 0, "its eps is not above 0");
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

// Whether all channels have one number.
bool hasOneNumber(const Operator& op) { return op.tensors[NormTensors::Weight].numel() == 1; }

int64_t groupsOf(const Operator& op, int64_t channels) {
  return op.attributes[0] > 0 ? op.attributes[0] : channels;
}

Sizes sizesOfGroupNorm(const Operands& operands) {
  const Sizes& first = operands.first();
  const Sizes sizes = hasOneNumber(operands.op) && int64_t(first.size()) > kAffineAxis
                          ? first
                          : normalized(operands, kAffineAxis);
  const int64_t channels = sizes[kAffineAxis], groups = groupsOf(operands.op, channels);
  require(
      operands.op, channels > 0 && channels % groups == 0, "divides channels into ", groups,
      " groups, and got the shape ", sizes);
  const int64_t images = std::max<int64_t>(sizes[0], 1), count = countOf(sizes) / images;
  require(operands.op, count > 0 || sizes[0] == 0, "is a mean of no values for the shape ", sizes);
  return sizes;
}

// Whether the sum of a row's codes fits int32.
bool sumsCodes(const Operator& op) { return op.tensors[NormTensors::Weight].numel() <= kMostNormalized; }

Planned softmax(const RegionReader& reader, Node* node) {
  reader.refuseCast(node);
  const bool hides = node->kind() != c10::aten::softmax;
  return {{Kind("softmax"), "", {}, 0, {reader.integer(node, "dim"), hides}, {}}, {node->input(0)}};
}

// The tensors of a norm over this number of channels.
std::vector<at::Tensor> normTensors(const RegionReader& reader, const Node* node, int64_t channels) {
  const auto numbers = [&](const char* name, double unless) {
    if (!reader.has(node, name)) {
      return at::full({channels}, unless, at::kFloat);
    }
    const auto given = reader.tensor(node, name).detach().to(at::kFloat).contiguous();
    refuseUnless(at::isfinite(given).all().item<bool>(), "its operand '", name, "' is not finite");
    return given;
  };
  const double eps =
      reader.has(node, "eps") ? reader.number(node, "eps") : std::numeric_limits<float>::epsilon();
  refuseUnless(eps > 0, "it adds ", eps, " to the variance, and a plan needs a number above 0");
  return {numbers("weight", 1), numbers("bias", 0), at::full({1}, eps, at::kDouble)};
}

Planned normOfRows(Kind kind, const RegionReader& reader, Node* node) {
  const auto shape = reader.integers(node, "normalized_shape");
  refuseUnless(
      shape.size() == 1, "it goes over ", shape.size(), " axes, and a plan has it over the last one");
  return {{kind, "", {}, 0, {}, normTensors(reader, node, shape[0])}, {node->input(0)}};
}

Planned layerNorm(const RegionReader& reader, Node* node) {
  return normOfRows(Kind("layer_norm"), reader, node);
}

// PyTorch's rms_norm has no bias.
Planned rmsNorm(const RegionReader& reader, Node* node) { return normOfRows(Kind("rms_norm"), reader, node); }

Planned normOfGroups(const RegionReader& reader, Node* node, int64_t groups) {
  int64_t channels = 1;
  for (const char* name : {"weight", "bias"}) {
    channels = reader.has(node, name) ? reader.tensor(node, name).numel() : channels;
  }
  return {{Kind("group_norm"), "", {}, 0, {groups}, normTensors(reader, node, channels)}, {node->input(0)}};
}

Planned groupNorm(const RegionReader& reader, Node* node) {
  return normOfGroups(reader, node, reader.integer(node, "num_groups"));
}

Planned instanceNorm(const RegionReader& reader, Node* node) {
  refuseUnless(
      reader.flag(node, "use_input_stats") && !reader.has(node, "running_mean"),
      "it has statistics of its own");
  return normOfGroups(reader, node, 0);
}

// The part of a kernel that gives float32, codes, or both. `held` keeps tensors that the kernel reads.
template <typename Kernel>
Part floatsAndCodes(const StepContext& c, Kernel kernel, const std::vector<at::Tensor>& held) {
  const auto [floats, codes] = c.floatsAndCodes();
  if (codes) {
    kernel.codes = toCodes(*codes->grid);
  }
  const Dims dims = pixelDims(c.in().sizes, c.in().axis);
  const auto placed = [&](const Memory* memory) {
    return memory ? std::optional(image(*memory, dims)) : std::nullopt;
  };
  const Placed x = image(c.in(), dims);
  return {
      kernel.items(x.image),
      [kernel, x, y = placed(floats), q = placed(codes), held, decode = Decode::of(*c.in().grid)](
          const Call& call, int64_t begin, int64_t end) {
        const auto run = [&](const Image& from, const Image& to, const Image& of_codes, int64_t first,
                             int64_t last) {
          kernel.run(from, y ? &to : nullptr, q ? &of_codes : nullptr, first, last);
        };
        decode.run(x.in(call), begin, end, run, y ? y->in(call) : Image{}, q ? q->in(call) : Image{});
      }};
}

double scaleOf(const Memory& memory) { return static_cast<float>(memory.grid->scale); }

Part softmaxKernel(const StepContext& c) {
  if (c.grid().is_float) {
    const bool hides = c.op.attributes.size() > 1 && c.op.attributes[1] != 0;
    return floatsAndCodes(c, SoftmaxFloats{{}, hides}, {});
  }
  Softmax kernel(scaleOf(c.in()), static_cast<float>(c.grid().scale));
  kernel.offset = offsetOf(c.grid());
  kernel.range = codeRangeOf(c.grid());
  return c.unary(kernel);
}

const float* numbersOf(const Operator& op, size_t which) { return op.tensors[which].const_data_ptr<float>(); }
double epsOf(const Operator& op) { return op.tensors[NormTensors::Eps].item<double>(); }

// The part of a kernel of codes. Its numbers for each channel are in units of the result's grid.
template <typename MakePart>
Part onCodes(const StepContext& c, const MakePart& make) {
  struct Numbers {
    AlignedVector<float> multiplier, offset;
  };
  const auto numbers = std::make_shared<Numbers>();
  const float *weight = numbersOf(c.op, NormTensors::Weight), *bias = numbersOf(c.op, NormTensors::Bias);
  const double scale = static_cast<float>(c.grid().scale);
  const int64_t channels = c.in().channels(), step = !hasOneNumber(c.op);
  for (int64_t i = 0; i < channels; ++i) {
    numbers->multiplier.push_back(static_cast<float>(weight[i * step] / scale));
    numbers->offset.push_back(static_cast<float>(offsetOf(c.grid()) + bias[i * step] / scale));
  }
  const double eps = epsOf(c.op) / (scaleOf(c.in()) * scaleOf(c.in()));
  const Part part = make(numbers->multiplier.data(), numbers->offset.data(), eps, codeRangeOf(c.grid()));
  return {part.items, [numbers, run = part.run](const Call& call, int64_t begin, int64_t end) {
            run(call, begin, end);
          }};
}

Part floatNormOfRows(const StepContext& c, bool centred) {
  const LayerNormFloats kernel{
      numbersOf(c.op, NormTensors::Weight), numbersOf(c.op, NormTensors::Bias), epsOf(c.op), centred};
  return floatsAndCodes(c, kernel, c.op.tensors);
}

Part rmsNormKernel(const StepContext& c) { return floatNormOfRows(c, false); }

Part layerNormKernel(const StepContext& c) {
  if (c.grid().is_float) {
    return floatNormOfRows(c, true);
  }
  return onCodes(c, [&](const float* multiplier, const float* offset, double eps, CodeRange range) {
    return c.unary(LayerNorm{multiplier, offset, eps, range});
  });
}

Part groupNormKernel(const StepContext& c) {
  const int64_t channels = c.in().channels(), groups = groupsOf(c.op, channels);
  const Placed x = image(c.in()), y = image(c.out());
  if (c.out().grid->is_float) {
    const auto numbers = [&](size_t which) { return c.op.tensors[which].expand({channels}).contiguous(); };
    const at::Tensor weight = numbers(NormTensors::Weight), bias = numbers(NormTensors::Bias);
    const GroupNormFloats kernel{
        groups, weight.const_data_ptr<float>(), bias.const_data_ptr<float>(), epsOf(c.op)};
    const Part part = unary(kernel, x, y);
    return {part.items, [weight, bias, run = part.run](const Call& call, int64_t begin, int64_t end) {
              run(call, begin, end);
            }};
  }
  return onCodes(c, [&](const float* multiplier, const float* offset, double eps, CodeRange range) {
    return unary(GroupNorm{groups, multiplier, offset, eps, range}, x, y);
  });
}

// Attributes: axis; 1 if a row of minus infinities gives zeros.
const RegisterOperator softmax_operator{
    {.name = "softmax",
     .attributes = {1, 2},
     .types = Types::Same,
     .decodes = true,
     .from = {{"softmax", softmax}, {"_safe_softmax", softmax}},
     .check = checkSoftmax,
     .infer = sizesOfSoftmax,
     .channels = axisOfAttribute,
     .lower = lowerRows,
     .kernel = softmaxKernel}};
// Over the last axis. Tensors: see NormTensors.
const RegisterOperator layer_norm_operator{
    {.name = "layer_norm",
     .tensors = {NormTensors::Count, NormTensors::Count},
     .types = Types::Same,
     .decodes = true,
     .from = {{"layer_norm", layerNorm}},
     .check = checkNorm,
     .infer = sizesOfLayerNorm,
     .gives_codes = sumsCodes,
     .channels = lastAxisOf,
     .lower = lowerRows,
     .kernel = layerNormKernel}};
// A norm without subtraction of the mean, in float32.
const RegisterOperator rms_norm_operator{
    {.name = "rms_norm",
     .tensors = {NormTensors::Count, NormTensors::Count},
     .types = Types::Real,
     .decodes = true,
     .from = {{"rms_norm", rmsNorm}},
     .check = checkNorm,
     .infer = sizesOfLayerNorm,
     .channels = lastAxisOf,
     .lower = lowerRows,
     .kernel = rmsNormKernel}};
// Over groups of the channels, which are axis 1. Attributes: the number of groups, or 0 for one group for each
// channel. Tensors: see NormTensors, with one number for each channel, or one for all.
const RegisterOperator group_norm_operator{
    {.name = "group_norm",
     .attributes = {1, 1},
     .tensors = {NormTensors::Count, NormTensors::Count},
     .types = Types::Same,
     .from = {{"group_norm", groupNorm}, {"instance_norm", instanceNorm}},
     .check = checkNorm,
     .infer = sizesOfGroupNorm,
     .channels = secondAxis,
     .lower = lowerChannels,
     .kernel = groupNormKernel}};

} // namespace
} // namespace jit_passes::x86
