// Images of another size: interpolated, or averaged.
#include "checks.h"
#include "from_graph.h"
#include "sizes.h"
#include "x86/lowering.h"

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

template <size_t Spatial>
Planned adaptiveAverage(const Reader& reader, Node* node) {
  std::vector<int64_t> a{Spatial};
  const auto sizes = reader.integers(node, "output_size", Spatial);
  a.insert(a.end(), sizes.begin(), sizes.end());
  return {{Kind::AdaptiveAverage, "", {}, 0, a, {}}, {node->input(0)}};
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

const RegisterOperator adaptive_average_operator{
    Kind::AdaptiveAverage,
    {.name = "adaptive_average",
     .attributes = {2, 4},
     .types = Types::Same,
     .from =
         {{"adaptive_avg_pool1d", adaptiveAverage<1>},
          {"adaptive_avg_pool2d", adaptiveAverage<2>},
          {"adaptive_avg_pool3d", adaptiveAverage<3>}},
     .check = checkAdaptive,
     .infer = sizesOfResized,
     .channels = axisInFront,
     .lower = &Lowering::lowerChannels,
     .step = Does::Average}};
const RegisterOperator nearest_operator{
    Kind::ResizeNearest,
    {.name = "resize_nearest",
     .attributes = {1, 4},
     .tensors = {0, 1},
     .types = Types::Same,
     .keeps_codes = true,
     .from =
         {{"upsample_nearest1d", resizeNearest<1>},
          {"upsample_nearest2d", resizeNearest<2>},
          {"upsample_nearest3d", resizeNearest<3>}},
     .check = checkNearest,
     .infer = sizesOfResized,
     .computes = computesSizes,
     .channels = axisInFront,
     .lower = &Lowering::lowerChannels,
     .step = Does::Resample}};
const RegisterOperator bilinear_operator{
    Kind::ResizeBilinear,
    {.name = "resize_bilinear",
     .attributes = {2, 4},
     .tensors = {0, 1},
     .types = Types::Same,
     .from = {{"upsample_bilinear2d", resizeBilinear}},
     .check = checkBilinear,
     .infer = sizesOfResized,
     .computes = computesSizesInFront,
     .channels = axisInFront,
     .lower = &Lowering::lowerChannels,
     .step = Does::Resample}};

} // namespace
} // namespace jit_passes::x86
