// Images of another size: interpolated, or averaged.
#include "checks.h"
#include "sizes.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kMaxResized = int64_t{1} << 24; // along an axis that is resized

// So many attributes behind the spatial axes are sizes, if there are no factors; `least` is the smallest.
void checkSizes(const Operator& op, int64_t sizes, int64_t least) {
  const int64_t spatial = op.attributes[0];
  checkSpatial(op, spatial);
  if (op.tensors.empty()) {
    requireForm(op, sizes == spatial, sizes, " sizes of ", spatial, " axes");
  } else {
    requireForm(op, sizes == 0, "sizes and factors");
    checkNumbers(op, op.tensors[0], spatial, "factors");
    const auto& factors = op.tensors[0];
    requireForm(
        op, at::logical_and(factors > 0, factors <= double(kMostWindow)).all().item<bool>(),
        "a factor is not above 0, or too large");
  }
  for (int64_t i = 1; i <= sizes; ++i) {
    const int64_t size = op.attributes[i];
    requireForm(op, between(size, least, kMaxSize) && size != 0, "a size of ", size);
  }
}

void checkAdaptive(const Operator& op) { checkSizes(op, op.attributes.size() - 1, -1); }
void checkNearest(const Operator& op) { checkSizes(op, op.attributes.size() - 1, 1); }

void checkBilinear(const Operator& op) {
  checkSpatial(op, op.attributes[0]);
  requireForm(
      op, op.attributes[0] == 2 && between(op.attributes.back(), 0, 1),
      "it has two axes, and whether corners are aligned is 0 or 1");
  checkSizes(op, op.attributes.size() - 2, 1);
}

Sizes sizesOfResized(const Operands& operands) {
  const Operator& op = operands.op;
  const int64_t spatial = op.attributes[0];
  const size_t axis = spatialAxis(operands, spatial);
  Sizes sizes = operands.first();
  for (int64_t i = 0; i < spatial; ++i) {
    if (!op.tensors.empty()) {
      sizes[axis + i] = static_cast<int64_t>(sizes[axis + i] * op.tensors[0].const_data_ptr<double>()[i]);
    } else if (op.attributes[1 + i] >= 0) {
      sizes[axis + i] = op.attributes[1 + i];
    }
    require(
        op, sizes[axis + i] > 0 && sizes[axis + i] <= kMaxResized,
        "gives an image that is empty or too large for the shape ", operands.first());
  }
  return sizes;
}

bool computesSizes(const Operator& /*op*/, int64_t attribute) { return attribute > 0; }

bool computesSizesInFront(const Operator& op, int64_t attribute) {
  return attribute > 0 && attribute + 1 < int64_t(op.attributes.size());
}

const RegisterOperator adaptive_average_operator{
    Kind::AdaptiveAverage,
    {.name = "adaptive_average",
     .inputs = {1, 1},
     .attributes = {2, 4},
     .tensors = {0, 0},
     .types = Types::Same,
     .check = checkAdaptive,
     .infer = sizesOfResized}};
const RegisterOperator nearest_operator{
    Kind::ResizeNearest,
    {.name = "resize_nearest",
     .inputs = {1, 1},
     .attributes = {1, 4},
     .tensors = {0, 1},
     .types = Types::Same,
     .check = checkNearest,
     .infer = sizesOfResized,
     .computes = computesSizes}};
const RegisterOperator bilinear_operator{
    Kind::ResizeBilinear,
    {.name = "resize_bilinear",
     .inputs = {1, 1},
     .attributes = {2, 4},
     .tensors = {0, 1},
     .types = Types::Same,
     .check = checkBilinear,
     .infer = sizesOfResized,
     .computes = computesSizesInFront}};

} // namespace
} // namespace jit_passes::x86
