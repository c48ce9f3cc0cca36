// Operators on two tensors that broadcast.
#include "broadcast.h"
#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/general.h"
#include "x86/program/checks.h"

namespace jit_passes::x86 {

const Kind Kind::Add("add");
const Kind Kind::Multiply("multiply");

namespace {

Planned sum(const RegionReader& reader, Node* node, double sign) {
  const double alpha = reader.has(node, "alpha") ? reader.number(node, "alpha") : 1;
  const auto factors = at::tensor({1.0, sign * alpha}, at::kDouble);
  return {{Kind::Add, "", {}, 0, {}, {factors}}, {node->input(0), node->input(1)}};
}

Planned add(const RegionReader& reader, Node* node) { return sum(reader, node, 1); }

Planned sub(const RegionReader& reader, Node* node) { return sum(reader, node, -1); }

void checkAdd(const Operator& op) { checkNumbers(op.tensors[0], 2, "factors"); }

template <typename Kernel>
Part binary(const StepContext& c, const Kernel& kernel) {
  const Memory& to = c.out();
  const Dims dims = pixelDims(to.sizes, to.axis);
  const Placed a = broadcastTo(to, c.in(0), dims), b = broadcastTo(to, c.in(1), dims), y = image(to, dims);
  return {kernel.items(y.image), [=](const Call& call, int64_t begin, int64_t end) {
            kernel.run(a.in(call), b.in(call), y.in(call), begin, end);
          }};
}

Part addKernel(const StepContext& c) {
  const double* factors = c.op.tensors[0].const_data_ptr<double>();
  if (c.grid().is_float) {
    return binary(
        c, AddFloats{
               floatOperand(c, 0), floatOperand(c, 1), static_cast<float>(factors[0]),
               static_cast<float>(factors[1])});
  }
  const Grid &a = *c.in(0).grid, &b = *c.in(1).grid;
  const double of_a = factors[0] * static_cast<float>(a.scale) / static_cast<float>(c.grid().scale);
  const double of_b = factors[1] * static_cast<float>(b.scale) / static_cast<float>(c.grid().scale);
  Add kernel{};
  kernel.a_multiplier = of_a, kernel.b_multiplier = of_b;
  kernel.offset = offsetOf(c.grid()) - a.zero_point * of_a - b.zero_point * of_b;
  kernel.range = codeRangeOf(c.grid());
  kernel.table = c.step.table;
  return binary(c, kernel);
}

Part multiplyKernel(const StepContext& c) {
  if (c.grid().is_float) {
    return binary(c, MultiplyFloats{floatOperand(c, 0), floatOperand(c, 1)});
  }
  const Grid &a = *c.in(0).grid, &b = *c.in(1).grid;
  Multiply kernel{};
  kernel.a_zero_point = a.zero_point, kernel.b_zero_point = b.zero_point;
  kernel.multiplier = static_cast<double>(static_cast<float>(a.scale)) * static_cast<float>(b.scale) /
                      static_cast<float>(c.grid().scale);
  kernel.offset = offsetOf(c.grid());
  kernel.range = codeRangeOf(c.grid());
  kernel.table = c.step.table;
  return binary(c, kernel);
}

Part divideKernel(const StepContext& c) {
  return binary(c, DivideFloats{floatOperand(c, 0), floatOperand(c, 1)});
}

Part fillKernel(const StepContext& c) {
  const auto number = std::bit_cast<float>(static_cast<uint32_t>(c.op.attributes[0]));
  return binary(c, FillFloats{floatOperand(c, 0), floatOperand(c, 1), number});
}

// first * factors[0] + second * factors[1], which broadcast. In float32 if one of the three values is.
const RegisterOperator add_operator{
    {.name = "add",
     .inputs = {2, 2},
     .tensors = {1, 1},
     .types = Types::Mixed,
     .from = {{"add", add}, {"sub", sub}},
     .check = checkAdd,
     .infer = sizesOfAll,
     .least_axes = mostAxesOfAny,
     .lower = lowerBroadcast,
     .elementwise = true,
     .kernel = addKernel,
     .order = orderOfLargest}};

Planned multiply(const RegionReader&, Node* node) {
  return {{Kind::Multiply, "", {}, 0, {}, {}}, {node->input(0), node->input(1)}};
}

// The product of two tensors, which broadcast. In float32 if one of the three values is.
const RegisterOperator multiply_operator{
    {.name = "multiply",
     .inputs = {2, 2},
     .types = Types::Mixed,
     .from = {{"mul", multiply}},
     .infer = sizesOfAll,
     .least_axes = mostAxesOfAny,
     .lower = lowerBroadcast,
     .elementwise = true,
     .kernel = multiplyKernel,
     .order = orderOfLargest}};

bool givesFloats(const Operator& /*op*/) { return false; }

// The quotient of a tensor by another one, or by a number.
Planned quotient(const RegionReader& reader, Node* node) {
  refuseUnless(node->inputs().size() == 2, "it rounds quotients");
  const auto number = numberOf(reader, node->input(1));
  if (!number) {
    return {{Kind("divide"), "", {}, 0, {}, {}}, {node->input(0), node->input(1)}};
  }
  refuseUnless(std::isfinite(static_cast<float>(1 / *number)), "it divides by ", *number);
  return function(node, FloatFunction::Scale, {1 / *number});
}

// The quotient of two tensors, which broadcast. Gives float32.
const RegisterOperator divide_operator{
    {.name = "divide",
     .inputs = {2, 2},
     .types = Types::Mixed,
     .from = {{"div", quotient}},
     .infer = sizesOfAll,
     .least_axes = mostAxesOfAny,
     .gives_codes = givesFloats,
     .lower = lowerBroadcast,
     .elementwise = true,
     .kernel = divideKernel,
     .order = orderOfLargest}};

Planned maskedFill(const RegionReader& reader, Node* node) {
  const auto number = numberOf(reader, node->input(2));
  refuseUnless(number.has_value(), "the model computes the number that it fills in");
  const int64_t bits = std::bit_cast<uint32_t>(static_cast<float>(*number));
  return {{Kind("fill"), "", {}, 0, {bits}, {}}, {node->input(0), node->input(1)}};
}

void checkFill(const Operator& op) {
  refuseUnless(between(op.attributes[0], 0, UINT32_MAX), "it has no float32");
}

// The first operand, or a number where the second operand is not 0. Both broadcast. Attributes: the bits of the
// number's float32.
const RegisterOperator fill_operator{
    {.name = "fill",
     .inputs = {2, 2},
     .attributes = {1, 1},
     .types = Types::Mixed,
     .any_dtype = 1,
     .from = {{"masked_fill", maskedFill, "mask"}},
     .check = checkFill,
     .infer = sizesOfAll,
     .least_axes = mostAxesOfAny,
     .gives_codes = givesFloats,
     .lower = lowerBroadcast,
     .elementwise = true,
     .kernel = fillKernel,
     .order = orderOfLargest}};

} // namespace
} // namespace jit_passes::x86
