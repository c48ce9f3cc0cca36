// The operators of reference models that a plan has, one function for each kind.
#include "reader.h"

#include "builder.h"
#include "core/places.h"
#include "planned_attention.h"
#include "planned_floats.h"
#include "planned_parts.h"
#include "planned_recurrent.h"

namespace jit_passes::x86 {
namespace {

// Numbers for depth, height and width, of the last axes; the others have `rest`.
void setLast(std::vector<int64_t>& attributes, size_t at, const std::vector<int64_t>& numbers, int64_t rest) {
  for (size_t i = 0; i < 3; ++i) {
    const size_t unused = 3 - numbers.size();
    attributes[at + i] = i < unused ? rest : numbers[i - unused];
  }
}

std::vector<at::Tensor> weighted(const Reader& reader, const Node* node) {
  const auto [weight, scales] = reader.weights(operandOf(node, "weight"));
  return {weight, scales, reader.bias(operandOf(node, "bias"), weight.size(0))};
}

// An operator with a window; the weight gets three spatial axes.
template <size_t Spatial>
Planned windowed(
    const Reader& reader, Node* node, Kind kind, const std::vector<int64_t>& before,
    const std::vector<int64_t>& after, std::vector<at::Tensor> tensors) {
  using A = ConvolutionAttributes;
  std::vector<int64_t> a(A::Count);
  a[A::Spatial] = Spatial, a[A::Groups] = reader.operand(node, "groups").toInt();
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
Planned convolution(const Reader& reader, Node* node) {
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

// Groups lie one after the other along the first axis: [in, out / groups, ...] becomes [out, in / groups, ...].
template <size_t Spatial>
Planned transposedConvolution(const Reader& reader, Node* node) {
  const auto [given, scales] = reader.weights(operandOf(node, "weight"), 1);
  const int64_t groups = reader.operand(node, "groups").toInt();
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

Planned linear(const Reader& reader, Node* node) {
  auto tensors = weighted(reader, node);
  refuseUnless(tensors[kWeight].dim() == 2, "its weight is no matrix");
  return withChoice(reader, node, {{Kind::Linear, "", {}, 0, {}, tensors}, {node->input(0)}});
}

// factor * x + bias - mean * factor, with factor = weight / sqrt(var + eps).
Planned batchNorm(const Reader& reader, Node* node) {
  refuseUnless(!reader.operand(node, "training").toBool(), "it trains");
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
      {Kind::Affine, "", {}, 0, {}, {factor.sign().to(at::kChar).unsqueeze(1), scales, bias.to(at::kFloat)}},
      {node->input(0)}};
}

Planned sum(const Reader& reader, Node* node, double sign) {
  const double alpha = reader.has(node, "alpha") ? reader.number(node, "alpha") : 1;
  const auto factors = at::tensor({1.0, sign * alpha}, at::kDouble);
  return {{Kind::Add, "", {}, 0, {}, {factors}}, {node->input(0), node->input(1)}};
}

Planned add(const Reader& reader, Node* node) { return sum(reader, node, 1); }
Planned sub(const Reader& reader, Node* node) { return sum(reader, node, -1); }

Planned multiply(const Reader&, Node* node) {
  return {{Kind::Multiply, "", {}, 0, {}, {}}, {node->input(0), node->input(1)}};
}

template <size_t Spatial>
std::vector<int64_t> poolAttributes(const Reader& reader, const Node* node) {
  using A = PoolAttributes;
  std::vector<int64_t> a(A::Count);
  const auto kernel = reader.integers(node, "kernel_size", Spatial);
  const auto given = reader.operand(node, "stride");
  const bool default_stride = given.isIntList() && given.toIntVector().empty();
  a[A::Spatial] = Spatial, a[A::Ceil] = reader.operand(node, "ceil_mode").toBool();
  setLast(a, A::Kernel, kernel, 1);
  setLast(a, A::Stride, default_stride ? kernel : reader.integers(node, "stride", Spatial), 1);
  setLast(a, A::Pad, reader.integers(node, "padding", Spatial), 0);
  setLast(a, A::Dilation, std::vector<int64_t>(Spatial, 1), 1);
  return a;
}

template <size_t Spatial>
Planned maxPool(const Reader& reader, Node* node) {
  auto a = poolAttributes<Spatial>(reader, node);
  setLast(a, PoolAttributes::Dilation, reader.integers(node, "dilation", Spatial), 1);
  return {{Kind::MaxPool, "", {}, 0, a, {}}, {node->input(0)}};
}

template <size_t Spatial>
Planned averagePool(const Reader& reader, Node* node) {
  auto a = poolAttributes<Spatial>(reader, node);
  a[PoolAttributes::CountPadding] = reader.operand(node, "count_include_pad").toBool();
  if (reader.has(node, "divisor_override")) {
    a[PoolAttributes::Divisor] = reader.operand(node, "divisor_override").toInt();
    refuseUnless(a[PoolAttributes::Divisor] > 0, "its divisor is not above 0");
  }
  return {{Kind::AveragePool, "", {}, 0, a, {}}, {node->input(0)}};
}

template <size_t Spatial>
Planned adaptiveAverage(const Reader& reader, Node* node) {
  std::vector<int64_t> a{Spatial};
  const auto sizes = reader.integers(node, "output_size", Spatial);
  a.insert(a.end(), sizes.begin(), sizes.end());
  return {{Kind::AdaptiveAverage, "", {}, 0, a, {}}, {node->input(0)}};
}

Planned concat(const Reader& reader, Node* node) {
  Node* list = node->input(0)->node();
  refuseUnless(
      list->kind() == c10::prim::ListConstruct && !reader.isWritten(node->input(0)),
      "the list of its operands is made elsewhere");
  // Caches begin with a tensor of no numbers and one axis, which goes with any others.
  const auto isEmpty = [&](const Value* value) {
    const auto known = reader.find(value);
    return known && known->isTensor() && known->toTensor().dim() == 1 && known->toTensor().numel() == 0;
  };
  auto operands = list->inputs().vec();
  std::erase_if(operands, isEmpty);
  refuseUnless(!operands.empty(), "it joins nothing");
  const std::vector<int64_t> axis{reader.operand(node, "dim").toInt()};
  return {{Kind::Concat, "", {}, 0, axis, {}}, operands};
}

Planned flatten(const Reader& reader, Node* node) {
  const std::vector<int64_t> axes{
      reader.operand(node, "start_dim").toInt(), reader.operand(node, "end_dim").toInt()};
  return {{Kind::Flatten, "", {}, 0, axes, {}}, {node->input(0)}};
}

Planned reshape(const Reader& reader, Node* node) {
  Planned planned{{Kind::Reshape, "", {}, 0, {}, {}}, {node->input(0)}};
  append(planned, reader.numbers(node, "shape"));
  return planned;
}

Planned permute(const Reader& reader, Node* node) {
  return {{Kind::Permute, "", {}, 0, reader.operand(node, "dims").toIntVector(), {}}, {node->input(0)}};
}

Planned pad(const Reader& reader, Node* node) {
  const auto mode = operandOf(node, "mode");
  refuseUnless(
      mode == nullptr || reader.operand(node, "mode").toStringRef() == "constant", "it repeats values");
  refuseUnless(
      !reader.has(node, "value") || reader.number(node, "value") == 0, "it pads with another number than 0");
  const Numbers sizes = reader.numbers(node, "pad");
  refuseUnless(
      !sizes.known.empty() && std::ranges::all_of(sizes.known, [](int64_t size) { return size >= 0; }),
      "it cuts values off");
  Planned planned{{Kind::Pad, "", {}, 0, {}, {}}, {node->input(0)}};
  append(planned, sizes);
  return planned;
}

template <size_t Spatial>
Planned resizeNearest(const Reader& reader, Node* node) {
  Planned planned{{Kind::ResizeNearest, "", {}, 0, {Spatial}, {}}, {node->input(0)}};
  if (reader.has(node, "scale_factors")) {
    const auto factors = reader.operand(node, "scale_factors").toDoubleVector();
    refuseUnless(factors.size() == Spatial, "it has ", factors.size(), " factors");
    planned.op.tensors.push_back(at::tensor(factors, at::kDouble));
  } else {
    refuseUnless(
        !reader.has(node, "scales") && !reader.has(node, "scales_h") && !reader.has(node, "scales_w"),
        "it has a size and factors");
    const Numbers sizes = reader.numbers(node, "output_size");
    refuseUnless(sizes.known.size() == Spatial, "it has ", sizes.known.size(), " sizes");
    append(planned, sizes);
  }
  return planned;
}

Planned resizeBilinear(const Reader& reader, Node* node) {
  Planned planned = resizeNearest<2>(reader, node);
  planned.op.kind = Kind::ResizeBilinear;
  planned.op.attributes.push_back(reader.operand(node, "align_corners").toBool());
  return planned;
}

struct Planner {
  Planned (*plan)(const Reader&, Node*);
  bool moves;
};

const std::unordered_map<c10::Symbol, Planner>& planners() {
  static const auto table = [] {
    std::unordered_map<c10::Symbol, Planner> found;
    const std::pair<const char*, Planner> rows[] = {
        {"conv1d", {convolution<1>, false}},
        {"conv2d", {convolution<2>, false}},
        {"conv3d", {convolution<3>, false}},
        {"conv_transpose1d", {transposedConvolution<1>, false}},
        {"conv_transpose2d", {transposedConvolution<2>, false}},
        {"conv_transpose3d", {transposedConvolution<3>, false}},
        {"linear", {linear, false}},
        {"batch_norm", {batchNorm, false}},
        {"add", {add, false}},
        {"sub", {sub, false}},
        {"mul", {multiply, false}},
        {"div", {quotient, false}},
        {"masked_fill", {maskedFill, false}},
        {"gelu", {gelu, false}},
        {"sigmoid", {namedFunction, false}},
        {"silu", {namedFunction, false}},
        {"tanh", {namedFunction, false}},
        {"hardsigmoid", {namedFunction, false}},
        {"hardswish", {namedFunction, false}},
        {"max_pool1d", {maxPool<1>, true}},
        {"max_pool2d", {maxPool<2>, true}},
        {"max_pool3d", {maxPool<3>, true}},
        {"avg_pool2d", {averagePool<2>, false}},
        {"avg_pool3d", {averagePool<3>, false}},
        {"adaptive_avg_pool1d", {adaptiveAverage<1>, false}},
        {"adaptive_avg_pool2d", {adaptiveAverage<2>, false}},
        {"adaptive_avg_pool3d", {adaptiveAverage<3>, false}},
        {"mean", {reduction, false}},
        {"sum", {reduction, false}},
        {"norm", {reduction, false}},
        {"linalg_vector_norm", {reduction, false}},
        {"amax", {reduction, false}},
        {"amin", {reduction, false}},
        {"cat", {concat, false}},
        {"flatten", {flatten, true}},
        {"reshape", {reshape, true}},
        {"unflatten", {unflatten, true}},
        {"permute", {permute, true}},
        {"transpose", {transpose, true}},
        {"unsqueeze", {unsqueeze, true}},
        {"squeeze", {squeeze, true}},
        {"expand", {expand, true}},
        {"roll", {roll, true}},
        {"neg", {negative, false}},
        {"square", {namedFunction, false}},
        {"sqrt", {namedFunction, false}},
        {"rsqrt", {namedFunction, false}},
        {"reciprocal", {namedFunction, false}},
        {"abs", {namedFunction, false}},
        {"exp", {namedFunction, false}},
        {"mish", {namedFunction, false}},
        {"leaky_relu", {leakyRelu, false}},
        {"elu", {elu, false}},
        {"softplus", {softplus, false}},
        {"pow", {power, false}},
        {"channel_shuffle", {channelShuffle, true}},
        {"slice", {slice, true}},
        {"narrow", {narrow, true}},
        {"select", {select, true}},
        {"matmul", {matrixProduct, false}},
        {"bmm", {batchedProduct, false}},
        {"softmax", {softmax, false}},
        {"_safe_softmax", {softmax, false}},
        {"layer_norm", {layerNorm, false}},
        {"rms_norm", {rmsNorm, false}},
        {"group_norm", {groupNorm, false}},
        {"chunk", {chunk, true}},
        {"unsafe_chunk", {chunk, true}},
        {"split", {split, true}},
        {"unbind", {unbind, true}},
        {"split_with_sizes", {split, true}},
        {"unsafe_split", {split, true}},
        {"unsafe_split_with_sizes", {split, true}},
        {"constant_pad_nd", {pad, true}},
        {"pad", {pad, true}},
        {"upsample_bilinear2d", {resizeBilinear, false}},
        {"upsample_nearest1d", {resizeNearest<1>, true}},
        {"upsample_nearest2d", {resizeNearest<2>, true}},
        {"upsample_nearest3d", {resizeNearest<3>, true}},
    };
    for (const auto& [name, planner] : rows) {
      found.emplace(c10::Symbol::fromQualString(std::string("aten::") + name), planner);
    }
    return found;
  }();
  return table;
}

} // namespace

bool isPlanned(const Node* node) { return planners().count(node->kind()) > 0; }

std::map<std::string, bool> plannedKinds() {
  std::map<std::string, bool> kinds;
  for (const auto& [kind, planner] : planners()) {
    kinds.emplace(kind.toQualString(), planner.moves);
  }
  for (const c10::Symbol kind : recurrentKinds()) {
    kinds.emplace(kind.toQualString(), false);
  }
  return kinds;
}

bool movesCodes(const Node* node) {
  const auto found = planners().find(node->kind());
  return found != planners().end() && found->second.moves;
}

Planned plannedOperator(const Reader& reader, Node* node) {
  const auto found = planners().find(node->kind());
  refuseUnless(found != planners().end(), "a plan has no such operator");
  return found->second.plan(reader, node);
}

} // namespace jit_passes::x86
