// Two tensors that broadcast.
#include "checks.h"
#include "from_graph.h"
#include "sizes.h"
#include "x86/lowering.h"

namespace jit_passes::x86 {
namespace {

Planned sum(const Reader& reader, Node* node, double sign) {
  const double alpha = reader.has(node, "alpha") ? reader.number(node, "alpha") : 1;
  const auto factors = at::tensor({1.0, sign * alpha}, at::kDouble);
  return {{Kind::Add, "", {}, 0, {}, {factors}}, {node->input(0), node->input(1)}};
}

Planned add(const Reader& reader, Node* node) { return sum(reader, node, 1); }

Planned sub(const Reader& reader, Node* node) { return sum(reader, node, -1); }

void checkAdd(const Operator& op) { checkNumbers(op, op.tensors[0], 2, "factors"); }

const RegisterOperator add_operator{
    Kind::Add,
    {.name = "add",
     .inputs = {2, 2},
     .tensors = {1, 1},
     .types = Types::Mixed,
     .from = {{"add", add}, {"sub", sub}},
     .check = checkAdd,
     .infer = sizesOfBoth,
     .least_axes = mostAxesOfAny,
     .lower = &Lowering::lowerBroadcast,
     .step = Does::Add,
     .order = orderOfLargest}};

Planned multiply(const Reader&, Node* node) {
  return {{Kind::Multiply, "", {}, 0, {}, {}}, {node->input(0), node->input(1)}};
}

const RegisterOperator multiply_operator{
    Kind::Multiply,
    {.name = "multiply",
     .inputs = {2, 2},
     .types = Types::Mixed,
     .from = {{"mul", multiply}},
     .infer = sizesOfBoth,
     .least_axes = mostAxesOfAny,
     .lower = &Lowering::lowerBroadcast,
     .step = Does::Multiply,
     .order = orderOfLargest}};

bool givesFloats(const Operator& /*op*/) { return false; }

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

const RegisterOperator divide_operator{
    Kind::Divide,
    {.name = "divide",
     .inputs = {2, 2},
     .types = Types::Mixed,
     .from = {{"div", quotient}},
     .infer = sizesOfBoth,
     .least_axes = mostAxesOfAny,
     .gives_codes = givesFloats,
     .lower = &Lowering::lowerBroadcast,
     .step = Does::Divide,
     .order = orderOfLargest}};

Planned maskedFill(const Reader& reader, Node* node) {
  const auto number = numberOf(reader, node->input(2));
  refuseUnless(number.has_value(), "the model computes what it fills in");
  const int64_t bits = std::bit_cast<uint32_t>(static_cast<float>(*number));
  return {{Kind::Fill, "", {}, 0, {bits}, {}}, {node->input(0), node->input(1)}};
}

void checkFill(const Operator& op) {
  requireForm(op, between(op.attributes[0], 0, UINT32_MAX), "it has no float32");
}

const RegisterOperator fill_operator{
    Kind::Fill,
    {.name = "fill",
     .inputs = {2, 2},
     .attributes = {1, 1},
     .types = Types::Mixed,
     .from = {{"masked_fill", maskedFill}},
     .check = checkFill,
     .infer = sizesOfBoth,
     .least_axes = mostAxesOfAny,
     .gives_codes = givesFloats,
     .lower = &Lowering::lowerBroadcast,
     .step = Does::Fill,
     .order = orderOfLargest}};

} // namespace
} // namespace jit_passes::x86
