#include "checks.h"
#include "sizes.h"

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

const RegisterOperator max_pool_operator{
    Kind::MaxPool,
    {.name = "max_pool",
     .inputs = {1, 1},
     .attributes = {PoolAttributes::Count, PoolAttributes::Count},
     .tensors = {0, 0},
     .types = Types::Same,
     .check = checkPool,
     .infer = sizesOfPool}};
const RegisterOperator average_pool_operator{
    Kind::AveragePool,
    {.name = "average_pool",
     .inputs = {1, 1},
     .attributes = {PoolAttributes::Count, PoolAttributes::Count},
     .tensors = {0, 0},
     .types = Types::Same,
     .check = checkAverage,
     .infer = sizesOfPool}};

} // namespace
} // namespace jit_passes::x86
