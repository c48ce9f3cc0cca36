// Images resized by interpolation or adaptive pools.
#include "sizes.h"
#include "windows.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/general.h"
#include "x86/program/checks.h"
#include "x86/running/copies.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kMaxResized = int64_t{1} << 24; // limit for a resized axis

// Checks the sizes after the first attribute, at least `least` each, if there are no factors.
void checkSizes(const Operator& op, int64_t sizes, int64_t least) {
  const int64_t spatial = op.attributes[0];
  checkSpatial(spatial);
  if (op.tensors.empty()) {
    refuseUnless(sizes == spatial, sizes, " sizes of ", spatial, " axes");
  } else {
    refuseUnless(sizes == 0, "sizes and factors");
    checkNumbers(op.tensors[0], spatial, "factors");
    const auto& factors = op.tensors[0];
    refuseUnless(
        at::logical_and(factors > 0, factors <= double(kMostWindow)).all().item<bool>(),
        "a factor is not above 0, or too large");
  }
  for (int64_t i = 1; i <= sizes; ++i) {
    const int64_t size = op.attributes[i];
    refuseUnless(between(size, least, kMaxSize) && size != 0, "a size of ", size);
  }
}

void checkAdaptive(const Operator& op) { checkSizes(op, op.attributes.size() - 1, -1); }
void checkNearest(const Operator& op) { checkSizes(op, op.attributes.size() - 1, 1); }

void checkBlended(const Operator& op) {
  refuseUnless(
      between(op.attributes[0], 1, 3) && between(op.attributes.back(), 0, 1),
      "it has one to three axes, and whether corners are aligned is 0 or 1");
  checkSizes(op, op.attributes.size() - 2, 1);
}

void checkCubic(const Operator& op) {
  refuseUnless(op.attributes[0] == 2, "it has two axes");
  checkBlended(op);
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
Planned adaptive(const RegionReader& reader, Node* node, const char* kind) {
  std::vector<int64_t> a{Spatial};
  const auto sizes = reader.integers(node, "output_size", Spatial);
  a.insert(a.end(), sizes.begin(), sizes.end());
  return {{Kind(kind), "", {}, 0, a, {}}, {node->input(0)}};
}

template <size_t Spatial>
Planned adaptiveAverage(const RegionReader& reader, Node* node) {
  return adaptive<Spatial>(reader, node, "adaptive_average");
}

template <size_t Spatial>
Planned adaptiveMax(const RegionReader& reader, Node* node) {
  refuseUnless(node->output(1)->uses().empty(), "the model reads its indices");
  return adaptive<Spatial>(reader, node, "adaptive_max");
}

template <size_t Spatial>
Planned resized(const RegionReader& reader, Node* node, const char* kind) {
  Planned planned{{Kind(kind), "", {}, 0, {Spatial}, {}}, {node->input(0)}};
  if (reader.has(node, "scale_factors")) {
    const auto given = reader.operand(node, "scale_factors");
    refuseUnless(given.isDoubleList(), "its factors are no list of numbers");
    const auto factors = given.toDoubleVector();
    refuseUnless(factors.size() == Spatial, "it has ", factors.size(), " factors");
    planned.op.tensors.push_back(at::tensor(factors, at::kDouble));
  } else {
    refuseUnless(
        !reader.has(node, "scales") && !reader.has(node, "scales_d") && !reader.has(node, "scales_h") &&
            !reader.has(node, "scales_w"),
        "it has a size and factors");
    const Numbers sizes = reader.numbers(node, "output_size");
    refuseUnless(sizes.known.size() == Spatial, "it has ", sizes.known.size(), " sizes");
    append(planned, sizes);
  }
  return planned;
}

template <size_t Spatial>
Planned resizeNearest(const RegionReader& reader, Node* node) {
  return resized<Spatial>(reader, node, "resize_nearest");
}

template <size_t Spatial>
Planned resizeNearestExact(const RegionReader& reader, Node* node) {
  return resized<Spatial>(reader, node, "resize_nearest_exact");
}

template <size_t Spatial>
Planned resizeBlended(const RegionReader& reader, Node* node) {
  Planned planned = resized<Spatial>(reader, node, "resize_linear");
  planned.op.attributes.push_back(reader.flag(node, "align_corners"));
  return planned;
}

Planned resizeCubic(const RegionReader& reader, Node* node) {
  Planned planned = resized<2>(reader, node, "resize_cubic");
  planned.op.attributes.push_back(reader.flag(node, "align_corners"));
  return planned;
}

Part adaptiveAverageKernel(const StepContext& c) {
  const Placed x = image(c.in()), y = image(c.out());
  return averageOver(c, adaptiveWindows(x.image, y.image), 0, x, y);
}

Part adaptiveMaxKernel(const StepContext& c) {
  const Placed x = image(c.in()), y = image(c.out());
  return largestOver(c, adaptiveWindows(x.image, y.image), {1, 1, 1}, x, y);
}

std::optional<double> factorOf(const Operator& op, size_t axis) {
  return op.tensors.empty() ? std::nullopt : std::optional(op.tensors[0].const_data_ptr<double>()[axis]);
}

template <bool kExact>
Part nearestKernel(const StepContext& c) {
  Placed x = image(c.in()), y = image(c.out());
  x.image.channels *= c.in().bytes(), y.image.channels *= c.out().bytes();
  Resample kernel;
  std::vector<int64_t>* const from[] = {&kernel.from_z, &kernel.from_y, &kernel.from_x};
  const int64_t spatial = c.op.attributes[0];
  const size_t unused = 3 - spatial;
  for (size_t i = 0; i < 3; ++i) {
    const auto factor = i >= unused ? factorOf(c.op, i - unused) : std::nullopt;
    const int64_t in = sizeOf(x.image, i), out = sizeOf(y.image, i);
    *from[i] = kExact ? nearestExact(in, out, factor) : nearest(in, out, factor, spatial == 2);
  }
  return unary(std::move(kernel), x, y);
}

// Whether only the caller reads an image with many more rows, as a contiguous tensor. Then the image is computed
// channel by channel, in the order of the result: the small operand is moved in place of the large result. Few rows
// are interpolated between pixels then, one number at a time, and many between rows.
bool isReturnedByChannel(const Lowering& state, const Operator& op) {
  constexpr int64_t kMany = 4; // rows for each row of the operand
  const Sizes &in = state.sizes[op.inputs[0]], &out = state.sizes[op.output];
  const auto rows = [](const Sizes& sizes) { return countOf(sizes) / std::max<int64_t>(sizes.back(), 1); };
  const auto number = std::ranges::find(state.program.outputs, op.output) - state.program.outputs.begin();
  return state.uses[op.output] == std::vector<size_t>{SIZE_MAX} && out.size() <= Dims().size() &&
         rows(out) >= kMany * rows(in) && std::ranges::is_sorted(state.result.orders[number]);
}

void lowerBlended(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  if (isReturnedByChannel(state, op)) {
    state.emit(Does::Compute, index, {state.want(op.inputs[0], -1)}, -1);
  } else {
    lowerChannels(state, index);
  }
}

// An image of several channels, or one image of one channel for each of them.
Placed imageOrPlanes(const Memory& memory) {
  return image(memory, memory.axis < 0 ? axisDims(memory.sizes, -1) : imageDims(memory.sizes, memory.axis));
}

// Axes that the image lacks have size 1, or count other images.
Part blendedKernel(const StepContext& c) {
  const Placed x = imageOrPlanes(c.in()), y = imageOrPlanes(c.out());
  const size_t unused = 3 - c.op.attributes[0];
  const auto taps = [&](size_t axis) {
    const auto factor = axis >= unused ? factorOf(c.op, axis - unused) : std::nullopt;
    return blendedTaps(sizeOf(x.image, axis), sizeOf(y.image, axis), factor, c.op.attributes.back() != 0);
  };
  const Grid &from = *c.in().grid, &to = *c.out().grid;
  if (to.is_float) {
    return unary(BlendFloats{taps(0), taps(1), taps(2)}, x, y);
  }
  const double ratio = static_cast<double>(static_cast<float>(from.scale)) / static_cast<float>(to.scale);
  Blend kernel{taps(0), taps(1), taps(2)};
  kernel.ratio = static_cast<float>(ratio);
  kernel.offset = static_cast<float>(offsetOf(to) - ratio * from.zero_point);
  kernel.range = codeRangeOf(to);
  return unary(std::move(kernel), x, y);
}

Part cubicKernel(const StepContext& c) {
  const Placed x = image(c.in()), y = image(c.out());
  const auto taps = [&](size_t axis) {
    return cubicTaps(
        sizeOf(x.image, axis), sizeOf(y.image, axis), factorOf(c.op, axis - 1), c.op.attributes.back() != 0);
  };
  return unary(CubicFloats{taps(1), taps(2)}, x, y);
}

// Attributes: the number of spatial axes, then sizes; -1 keeps the operand's.
const RegisterOperator adaptive_average_operator{
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
     .lower = lowerChannels,
     .kernel = adaptiveAverageKernel}};
// Attributes as for the average.
const RegisterOperator adaptive_max_operator{
    {.name = "adaptive_max",
     .attributes = {2, 4},
     .types = Types::Same,
     .keeps_codes = true,
     .from =
         {{"adaptive_max_pool1d", adaptiveMax<1>},
          {"adaptive_max_pool2d", adaptiveMax<2>},
          {"adaptive_max_pool3d", adaptiveMax<3>}},
     .check = checkAdaptive,
     .infer = sizesOfResized,
     .channels = axisInFront,
     .lower = lowerChannels,
     .kernel = adaptiveMaxKernel}};
// Attributes: the number of spatial axes, then sizes; or tensors[0] has factors.
template <bool kExact>
Declaration toNearest(const char* name, std::vector<From> from) {
  return {
      .name = name,
      .attributes = {1, 4},
      .tensors = {0, 1},
      .types = Types::Same,
      .keeps_codes = true,
      .from = std::move(from),
      .check = checkNearest,
      .infer = sizesOfResized,
      .computes = computesSizes,
      .channels = axisInFront,
      .lower = lowerChannels,
      .kernel = nearestKernel<kExact>};
}

const RegisterOperator nearest_operator{toNearest<false>(
    "resize_nearest", {{"upsample_nearest1d", resizeNearest<1>},
                       {"upsample_nearest2d", resizeNearest<2>},
                       {"upsample_nearest3d", resizeNearest<3>}})};
const RegisterOperator nearest_exact_operator{toNearest<true>(
    "resize_nearest_exact", {{"_upsample_nearest_exact1d", resizeNearestExact<1>},
                             {"_upsample_nearest_exact2d", resizeNearestExact<2>},
                             {"_upsample_nearest_exact3d", resizeNearestExact<3>}})};
// Attributes as for nearest neighbours, then whether corners are aligned.
const RegisterOperator resized_operator{
    {.name = "resize_linear",
     .attributes = {2, 5},
     .tensors = {0, 1},
     .types = Types::Same,
     .from =
         {{"upsample_linear1d", resizeBlended<1>},
          {"upsample_bilinear2d", resizeBlended<2>},
          {"upsample_trilinear3d", resizeBlended<3>}},
     .check = checkBlended,
     .infer = sizesOfResized,
     .computes = computesSizesInFront,
     .channels = axisInFront,
     .lower = lowerBlended,
     .kernel = blendedKernel}};
// In float32, since results exceed the range of the operand. Attributes as for linear interpolation.
const RegisterOperator cubic_operator{
    {.name = "resize_cubic",
     .attributes = {2, 4},
     .tensors = {0, 1},
     .types = Types::Real,
     .from = {{"upsample_bicubic2d", resizeCubic}},
     .check = checkCubic,
     .infer = sizesOfResized,
     .computes = computesSizesInFront,
     .channels = axisInFront,
     .lower = lowerChannels,
     .kernel = cubicKernel}};

} // namespace
} // namespace jit_passes::x86
