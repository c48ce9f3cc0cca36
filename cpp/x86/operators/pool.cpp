#include "checks.h"
#include "from_graph.h"
#include "sizes.h"
#include "x86/lowering.h"

namespace jit_passes::x86 {
namespace {

void checkPool(const Operator& op) {
  using A = PoolAttributes;
  const auto& a = op.attributes;
  checkSpatial(op, a[A::Spatial]);
  requireForm(
      op,
      between(a[A::Ceil], 0, 1) && between(a[A::CountPadding], 0, 1) && between(a[A::Divisor], 0, kMaxSize),
      "a switch that is not 0 or 1, or a divisor below 0");
  for (size_t i = 0; i < 3; ++i) {
    const int64_t kernel = a[A::Kernel + i], pad = a[A::Pad + i];
    checkWindow(op, i + a[A::Spatial] >= 3, kernel, a[A::Stride + i], pad, a[A::Dilation + i]);
    requireForm(op, pad <= kernel / 2, "a padding of more than half of the window");
  }
}

void checkAverage(const Operator& op) {
  checkPool(op);
  for (size_t i = 0; i < 3; ++i) {
    requireForm(op, op.attributes[PoolAttributes::Dilation + i] == 1, "an average with a dilation");
  }
}

Sizes sizesOfPool(const Operands& operands) {
  using A = PoolAttributes;
  const auto& a = operands.op.attributes;
  const size_t axis = spatialAxis(operands, a[A::Spatial]), unused = 3 - a[A::Spatial];
  Sizes sizes = operands.first();
  for (size_t i = unused; i < 3; ++i) {
    int64_t& size = sizes[axis + i - unused];
    const int64_t stride = a[A::Stride + i], pad = a[A::Pad + i];
    const int64_t window = a[A::Dilation + i] * (a[A::Kernel + i] - 1) + 1;
    const int64_t rest = size + 2 * pad - window + (a[A::Ceil] ? stride - 1 : 0);
    require(
        operands.op, rest >= 0, "has a window larger than its padded input of the shape ", operands.first());
    int64_t out = rest / stride + 1;
    if (a[A::Ceil] && (out - 1) * stride >= size + pad) {
      --out; // the last window begins inside of the input or of the padding in front of it
    }
    size = out;
  }
  return sizes;
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

const RegisterOperator max_pool_operator{
    Kind::MaxPool,
    {.name = "max_pool",
     .attributes = {PoolAttributes::Count, PoolAttributes::Count},
     .types = Types::Same,
     .keeps_codes = true,
     .from = {{"max_pool1d", maxPool<1>}, {"max_pool2d", maxPool<2>}, {"max_pool3d", maxPool<3>}},
     .check = checkPool,
     .infer = sizesOfPool,
     .channels = axisInFront,
     .lower = &Lowering::lowerChannels,
     .step = Does::MaxPool}};
const RegisterOperator average_pool_operator{
    Kind::AveragePool,
    {.name = "average_pool",
     .attributes = {PoolAttributes::Count, PoolAttributes::Count},
     .types = Types::Same,
     .from = {{"avg_pool2d", averagePool<2>}, {"avg_pool3d", averagePool<3>}},
     .check = checkAverage,
     .infer = sizesOfPool,
     .channels = axisInFront,
     .lower = &Lowering::lowerChannels,
     .step = Does::Average}};

} // namespace
} // namespace jit_passes::x86
