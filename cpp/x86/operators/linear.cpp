// Linear layers, and products of computed matrices.
#include "grouped_linear.h"
#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/general.h"
#include "x86/program/checks.h"

namespace jit_passes::x86 {

const Kind Kind::Linear("linear");
const Kind Kind::MatrixProduct("matrix_product");

namespace {

void checkLinear(const Operator& op) {
  checkWeights(op, 2);
  checkSum(op);
}

void checkFloatLinear(const Operator& op) { checkWeights(op, 2); }

void checkDynamicLinear(const Operator& op) {
  checkDynamic(op);
  checkWeights(op, 2);
}

Sizes sizesOfLinear(const Operands& operands) {
  const Operator& op = operands.op;
  const auto& weight = op.tensors[kWeight];
  Sizes sizes = operands.first();
  require(
      op, !sizes.empty() && sizes.back() == weight.size(1), "takes ", weight.size(1),
      " features, and got the shape ", sizes);
  sizes.back() = weight.size(0);
  return operands.sizes.size() > 1 ? broadcast(op, sizes, operands[1]) : sizes;
}

void checkProduct(const Operator& op) {
  refuseUnless(between(op.attributes[0], 0, 1), "whether it has batches is 0 or 1");
}

// A vector is a row on the left, and a column on the right.
Sizes sizesOfProduct(const Operands& operands) {
  const Operator& op = operands.op;
  const Sizes &a = operands[0], &b = operands[1];
  require(op, !a.empty() && !b.empty(), "takes no numbers");
  const int64_t products = a.back(), rows = b.size() == 1 ? b[0] : b[b.size() - 2];
  require(op, products == rows, "got the shapes ", a, " and ", b, ", whose inner axes differ");
  const Sizes of_a(a.begin(), a.end() - std::min<size_t>(a.size(), 2));
  const Sizes of_b(b.begin(), b.end() - std::min<size_t>(b.size(), 2));
  require(
      op, op.attributes[0] == 0 || (of_a.size() == 1 && of_a == of_b && b.size() == 3), "got the shapes ", a,
      " and ", b, ", which are no batches of one size");
  Sizes sizes = broadcast(op, of_a, of_b);
  if (a.size() > 1) {
    sizes.push_back(a[a.size() - 2]);
  }
  if (b.size() > 1) {
    sizes.push_back(b.back());
  }
  return sizes;
}

int64_t leastAxesOfProduct(const Operator& /*op*/, int64_t /*first*/, int64_t /*most*/) { return 0; }

Planned linear(const RegionReader& reader, Node* node) {
  if (auto grouped = groupedLinear(reader, node)) {
    return std::move(*grouped);
  }
  auto tensors = weighted(reader, node);
  refuseUnless(tensors[kWeight].dim() == 2, "its weight is no matrix");
  return withChoice(reader, node, {{Kind::Linear, "", {}, 0, {}, tensors}, {node->input(0)}});
}

Planned matrixProduct(const RegionReader&, Node* node) {
  return {{Kind::MatrixProduct, "", {}, 0, {0}, {}}, {node->input(0), node->input(1)}};
}

Planned batchedProduct(const RegionReader&, Node* node) {
  return {{Kind::MatrixProduct, "", {}, 0, {1}, {}}, {node->input(0), node->input(1)}};
}

// A linear layer over the last axis. Like Convolution, it may have a second input and factors: it then gives first *
// factors[0] + second * factors[1], where the first is its own result. Both broadcast.
const RegisterOperator linear_operator{
    {.name = "linear",
     .inputs = {1, 2},
     .tensors = {3, 4},
     .layer = LayerKind::Linear,
     .in_floats = "linear_to_floats",
     .dynamic_form = "linear_dynamic",
     .from = {{"linear", linear}},
     .check = checkLinear,
     .infer = sizesOfLinear,
     .channels = lastAxisOf,
     .lower = lowerWithTable,
     .step = Does::Convolve}};
// A linear layer whose result is float32.
const RegisterOperator float_linear_operator{
    {.name = "linear_to_floats",
     .tensors = {3, 3},
     .types = Types::ToFloats,
     .layer = LayerKind::Linear,
     .check = checkFloatLinear,
     .infer = sizesOfLinear,
     .channels = lastAxisOf,
     .lower = lowerFloatLayer,
     .step = Does::ToFloats}};
// A linear layer whose input is quantized at run time. Attributes: see DynamicAttributes.
const RegisterOperator dynamic_linear_operator{
    {.name = "linear_dynamic",
     .attributes = {DynamicAttributes::Count, DynamicAttributes::Count},
     .tensors = {3, 3},
     .types = Types::Real,
     .most_axes = kMostMovedAxes,
     .layer = LayerKind::Linear,
     .dynamic = true,
     .check = checkDynamicLinear,
     .infer = sizesOfLinear,
     .channels = lastAxisOf,
     .lower = lowerFloatLayer,
     .step = Does::ToFloats}};
// Attributes: 1 if both operands are batches of matrices, 0 if leading axes broadcast, as with Python's @.
const RegisterOperator product_operator{
    {.name = "matrix_product",
     .inputs = {2, 2},
     .attributes = {1, 1},
     .types = Types::Same,
     .from = {{"matmul", matrixProduct}, {"bmm", batchedProduct}},
     .check = checkProduct,
     .infer = sizesOfProduct,
     .least_axes = leastAxesOfProduct,
     .channels = lastAxisOf,
     .lower = lowerProduct}};

} // namespace
} // namespace jit_passes::x86
