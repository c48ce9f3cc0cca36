// Elementwise functions of one tensor: in float32, and as a table of codes.
#include "graph/operators.h"
#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/general.h"
#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"
#include "x86/program/made.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {

const Kind Kind::Function("function");
const Kind Kind::Table("table");

namespace {

Planned gelu(const RegionReader& reader, Node* node) {
  const std::string form = reader.text(node, "approximate");
  refuseUnless(form == "none" || form == "tanh", "its approximation is '", form, "'");
  return function(node, form == "none" ? FloatFunction::Gelu : FloatFunction::GeluTanh);
}

template <FloatFunction::Which which>
Planned withoutOptions(const RegionReader& /*reader*/, Node* node) {
  return function(node, which);
}

Planned leakyRelu(const RegionReader& reader, Node* node) {
  return function(node, FloatFunction::LeakyRelu, {reader.number(node, "negative_slope")});
}

Planned elu(const RegionReader& reader, Node* node) {
  const auto number = [&](const char* name) { return reader.number(node, name); };
  refuseUnless(number("scale") == 1 && number("input_scale") == 1, "it has scales");
  return function(node, FloatFunction::Elu, {number("alpha")});
}

Planned softplus(const RegionReader& reader, Node* node) {
  const auto number = [&](const char* name) { return reader.number(node, name); };
  refuseUnless(number("beta") != 0, "its beta is 0");
  return function(node, FloatFunction::Softplus, {number("beta"), number("threshold")});
}

// Exponents with a short form in PyTorch have that form here.
Planned power(const RegionReader& reader, Node* node) {
  static const std::map<double, FloatFunction::Which> known{
      {2, FloatFunction::Square},
      {3, FloatFunction::Cube},
      {0.5, FloatFunction::Root},
      {-0.5, FloatFunction::InverseRoot},
      {-1, FloatFunction::Inverse}};
  const auto number = numberOf(reader, node->input(1));
  refuseUnless(number.has_value(), "its power is computed by the model");
  refuseUnless(!std::isnan(*number), "its power is NaN"); // a NaN would equal each key of the map
  if (known.count(*number)) {
    return function(node, known.at(*number));
  }
  const auto power = static_cast<float>(*number);
  refuseUnless(std::isfinite(power) && power != 0, "its power is ", *number);
  return function(node, FloatFunction::Power, {power});
}

Clipped clip(const RegionReader& reader, Node* node) {
  const Clip& ends = *operatorTable().at(node->kind().toQualString()).clip;
  const auto end = [&](const Bound& bound, double none) {
    if (const auto* number = std::get_if<double>(&bound)) {
      return *number;
    }
    const auto* name = std::get_if<const char*>(&bound);
    return name && reader.has(node, *name) ? reader.number(node, *name) : none;
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Clipped clipped{end(ends.low, -infinity), end(ends.high, infinity)};
  refuseUnless(!std::isnan(clipped.low) && !std::isnan(clipped.high), "it clips at NaN");
  return clipped;
}

Planned negative(const RegionReader&, Node* node) { return function(node, FloatFunction::Scale, {-1}); }

void checkFunction(const Operator& op) {
  const int64_t which = op.attributes[0];
  refuseUnless(between(which, 0, FloatFunction::kCount - 1), "function ", which, " is none");
  const at::Tensor& numbers = op.tensors[0];
  refuseUnless(
      numbers.scalar_type() == at::kDouble && numbers.dim() == 1 &&
          numbers.numel() == FloatFunction::numbersOf(which) && !at::isnan(numbers).any().item<bool>(),
      "the numbers of its function are float64, ", FloatFunction::numbersOf(which), " of them");
}

Part functionKernel(const StepContext& c) { return c.unary(c.step.function); }
Part tableKernel(const StepContext& c) { return c.unary(LookUp{c.step.table}); }

void lowerFunction(Lowering& state, size_t index) {
  lowerInPlace(state, index);
  state.result.steps.back().function = functionOf(state.program.operators[index]);
}

void lowerTable(Lowering& state, size_t index) {
  lowerInPlace(state, index);
  state.result.steps.back().table = state.program.operators[index].tensors[0].const_data_ptr<uint8_t>();
}

// An elementwise function of float32. Attributes: which function; tensors: float64, its numbers.
const RegisterOperator function_operator{
    {.name = "function",
     .attributes = {1, 1},
     .tensors = {1, 1},
     .types = Types::Real,
     .most_axes = kMostMovedAxes,
     .from =
         {{"gelu", gelu},
          {"sigmoid", withoutOptions<FloatFunction::Sigmoid>},
          {"silu", withoutOptions<FloatFunction::Silu>},
          {"tanh", withoutOptions<FloatFunction::Tanh>},
          {"hardsigmoid", withoutOptions<FloatFunction::HardSigmoid>},
          {"hardswish", withoutOptions<FloatFunction::HardSwish>},
          {"neg", negative},
          {"square", withoutOptions<FloatFunction::Square>},
          {"sqrt", withoutOptions<FloatFunction::Root>},
          {"rsqrt", withoutOptions<FloatFunction::InverseRoot>},
          {"reciprocal", withoutOptions<FloatFunction::Inverse>},
          {"abs", withoutOptions<FloatFunction::Absolute>},
          {"exp", withoutOptions<FloatFunction::Exp>},
          {"mish", withoutOptions<FloatFunction::Mish>},
          {"leaky_relu", leakyRelu},
          {"elu", elu},
          {"softplus", softplus},
          {"pow", power},
          {"relu", clip},
          {"relu6", clip},
          {"hardtanh", clip},
          {"clamp", clip},
          {"clamp_min", clip},
          {"clamp_max", clip}},
     .check = checkFunction,
     .lower = lowerFunction,
     .elementwise = true,
     .kernel = functionKernel,
     .order = orderOfFirst}};

void checkTable(const Operator& op) {
  const auto& table = op.tensors[0];
  refuseUnless(
      table.scalar_type() == at::kByte && table.dim() == 1 && table.size(0) == 256,
      "a table is uint8 with 256 entries");
}

// A function of codes, as a table.
const RegisterOperator table_operator{
    {.name = "table",
     .tensors = {1, 1},
     .most_axes = kMostMovedAxes,
     .check = checkTable,
     .lower = lowerTable,
     .elementwise = true,
     .kernel = tableKernel,
     .order = orderOfFirst}};

} // namespace

Planned function(Node* node, FloatFunction::Which which, const std::vector<double>& numbers) {
  return {{Kind::Function, "", {}, 0, {which}, {at::tensor(numbers, at::kDouble)}}, {node->input(0)}};
}

Operator tableOperator(std::string name, at::Tensor table) {
  return {Kind::Table, std::move(name), {}, 0, {}, {std::move(table)}};
}

} // namespace jit_passes::x86
