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
      {c10::aten::hardswish, FloatFunction::HardSwish}};
  return function(node, known.at(node->kind()));
}

Planned quotient(const Reader& reader, Node* node) {
  const auto number = numberOf(reader, node->input(1));
  refuseUnless(number.has_value() && node->inputs().size() == 2, "it divides by what is no number");
  refuseUnless(std::isfinite(static_cast<float>(1 / *number)), "it divides by ", *number);
  return function(node, FloatFunction::Scale, {1 / *number});
}

// PyTorch computes a power of 2 as a product.
Planned square(const Reader& reader, Node* node) {
  const bool power = node->kind() == c10::aten::pow;
  refuseUnless(!power || numberOf(reader, node->input(1)) == 2.0, "it has another power than 2");
  return function(node, FloatFunction::Square);
}

Planned negative(const Reader&, Node* node) { return function(node, FloatFunction::Scale, {-1}); }

Planned clipping(Node* node, double low, double high) {
  return function(node, FloatFunction::Clip, {low, high});
}

} // namespace jit_passes::x86
