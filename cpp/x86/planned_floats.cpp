#include "planned_floats.h"

#include "core/places.h"
#include "dynamic.h"
#include "passes/dialect.h"

namespace jit_passes::x86 {
namespace {

Planned function(Node* node, FloatFunction::Which which, const std::vector<double>& numbers = {}) {
  return {{Kind::Function, "", {}, 0, {which}, {at::tensor(numbers, at::kDouble)}}, {node->input(0)}};
}

// Of a number, or a tensor without axes.
std::optional<double> numberOf(const Reader& reader, const Value* value) {
  const auto known = reader.find(value);
  if (known && known->isTensor() && known->toTensor().dim() == 0) {
    return known->toTensor().item<double>();
  }
  return known && known->isScalar() ? std::optional(known->toScalar().toDouble()) : std::nullopt;
}

} // namespace

Planned withChoice(const Reader& reader, const Node* node, Planned planned) {
  if (node->input(0)->node()->kind() != dequantize_dynamic) {
    return planned;
  }
  const Node* codes = node->input(0)->node()->input(0)->node();
  refuseUnless(
      codes->kind() == quantize_dynamic && codes->input(1)->node()->kind() == choose_qparams &&
          codes->input(1)->node() == codes->input(2)->node() &&
          codes->input(0) == codes->input(1)->node()->input(0),
      "the grid of its input is not that of its own numbers");
  Node* choice = codes->input(1)->node();
  const auto text = [&](const char* name) { return reader.operand(choice, name).toStringRef(); };
  const std::string scheme = text("qscheme"), form = text("range_form");
  const bool linear = isLinear(planned.op.kind), per_row = scheme.starts_with("per_token_");
  refuseUnless(linear || !per_row, "the tokens of its input are no pixels");
  const RangeForm range = form == "fbgemm"                 ? RangeForm::Fbgemm
                          : scheme.ends_with("_symmetric") ? RangeForm::Symmetric
                                                           : RangeForm::Affine;
  const auto is = [&](const Node* of, const char* name, int64_t number) {
    return reader.operand(of, name).toInt() == number;
  };
  refuseUnless(
      is(codes, "quant_min", 0) && is(codes, "quant_max", 255) &&
          is(codes, "dtype", static_cast<int64_t>(at::kByte)) && is(choice, "quant_min", 0) &&
          is(choice, "quant_max", 255),
      "its input has other codes than those of uint8");
  planned.op.kind = linear                          ? Kind::DynamicLinear
                    : isTransposed(planned.op.kind) ? Kind::DynamicTransposedConvolution
                                                    : Kind::DynamicConvolution;
  planned.op.attributes.insert(planned.op.attributes.end(), {per_row, static_cast<int64_t>(range)});
  planned.operands = {choice->input(0)};
  return planned;
}

Planned gelu(const Reader& reader, Node* node) {
  const std::string form = reader.operand(node, "approximate").toStringRef();
  refuseUnless(form == "none" || form == "tanh", "its approximation is '", form, "'");
  return function(node, form == "none" ? FloatFunction::Gelu : FloatFunction::GeluTanh);
}

Planned namedFunction(const Reader&, Node* node) {
  static const std::unordered_map<c10::Symbol, FloatFunction::Which> known{
      {c10::aten::sigmoid, FloatFunction::Sigmoid},
      {c10::aten::silu, FloatFunction::Silu},
      {c10::aten::tanh, FloatFunction::Tanh},
      {c10::aten::hardsigmoid, FloatFunction::HardSigmoid},
      {c10::aten::hardswish, FloatFunction::HardSwish},
      {c10::aten::square, FloatFunction::Square},
      {c10::aten::sqrt, FloatFunction::Root},
      {c10::aten::rsqrt, FloatFunction::InverseRoot},
      {c10::aten::reciprocal, FloatFunction::Inverse},
      {c10::aten::abs, FloatFunction::Absolute},
      {c10::aten::exp, FloatFunction::Exp},
      {c10::aten::mish, FloatFunction::Mish}};
  return function(node, known.at(node->kind()));
}

Planned leakyRelu(const Reader& reader, Node* node) {
  return function(
      node, FloatFunction::LeakyRelu, {reader.operand(node, "negative_slope").toScalar().toDouble()});
}

Planned elu(const Reader& reader, Node* node) {
  const auto number = [&](const char* name) { return reader.operand(node, name).toScalar().toDouble(); };
  refuseUnless(number("scale") == 1 && number("input_scale") == 1, "it has scales");
  return function(node, FloatFunction::Elu, {number("alpha")});
}

Planned softplus(const Reader& reader, Node* node) {
  const auto number = [&](const char* name) { return reader.operand(node, name).toScalar().toDouble(); };
  refuseUnless(number("beta") != 0, "its beta is 0");
  return function(node, FloatFunction::Softplus, {number("beta"), number("threshold")});
}

// Of a tensor by another, or by a number.
Planned quotient(const Reader& reader, Node* node) {
  refuseUnless(node->inputs().size() == 2, "it rounds quotients");
  const auto number = numberOf(reader, node->input(1));
  if (!number) {
    return {{Kind::Divide, "", {}, 0, {}, {}}, {node->input(0), node->input(1)}};
  }
  refuseUnless(std::isfinite(static_cast<float>(1 / *number)), "it divides by ", *number);
  return function(node, FloatFunction::Scale, {1 / *number});
}

Planned maskedFill(const Reader& reader, Node* node) {
  const auto number = numberOf(reader, node->input(2));
  refuseUnless(number.has_value(), "the model computes what it fills in");
  const int64_t bits = std::bit_cast<uint32_t>(static_cast<float>(*number));
  return {{Kind::Fill, "", {}, 0, {bits}, {}}, {node->input(0), node->input(1)}};
}

// PyTorch computes these powers in the same way.
Planned power(const Reader& reader, Node* node) {
  static const std::map<double, FloatFunction::Which> known{
      {2, FloatFunction::Square},
      {3, FloatFunction::Cube},
      {0.5, FloatFunction::Root},
      {-0.5, FloatFunction::InverseRoot},
      {-1, FloatFunction::Inverse}};
  const auto number = numberOf(reader, node->input(1));
  refuseUnless(number && known.count(*number), "it has another power than 3, 2, 0.5, -0.5 and -1");
  return function(node, known.at(*number));
}

Planned negative(const Reader&, Node* node) { return function(node, FloatFunction::Scale, {-1}); }

Planned reduction(const Reader& reader, Node* node) {
  static const std::unordered_map<c10::Symbol, Kind> known{
      {c10::aten::mean, Kind::Mean},    {c10::aten::sum, Kind::Sum},
      {c10::aten::norm, Kind::Length},  {c10::aten::linalg_vector_norm, Kind::Length},
      {c10::aten::amax, Kind::Largest}, {c10::aten::amin, Kind::Smallest}};
  const Kind kind = known.at(node->kind());
  refuseUnless(operandOf(node, "dim") != nullptr && reader.has(node, "dim"), "it goes over all axes");
  refuseUnless(!reader.has(node, "dtype"), "it changes the dtype");
  refuseUnless(
      kind != Kind::Length || numberOf(reader, node->input(1)) == 2.0, "it is another norm than that of 2");
  const auto dims = reader.operand(node, "dim");
  const auto axes = dims.isInt() ? std::vector{dims.toInt()} : dims.toIntVector();
  refuseUnless(!axes.empty(), "it goes over all axes");
  std::vector<int64_t> a{reader.operand(node, "keepdim").toBool()};
  a.insert(a.end(), axes.begin(), axes.end());
  return {{kind, "", {}, 0, a, {}}, {node->input(0)}};
}

Planned clipping(Node* node, double low, double high) {
  return function(node, FloatFunction::Clip, {low, high});
}

} // namespace jit_passes::x86
