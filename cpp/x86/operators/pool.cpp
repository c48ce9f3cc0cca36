#include "sizes.h"
#include "windows.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/general.h"
#include "x86/program/checks.h"

namespace jit_passes::x86 {
namespace {

void checkPool(const Operator& op) {
  using A = PoolAttributes;
  const auto& a = op.attributes;
  checkSpatial(a[A::Spatial]);
  refuseUnless(
      between(a[A::Ceil], 0, 1) && between(a[A::CountPadding], 0, 1) && between(a[A::Divisor], 0, kMaxSize),
      "a switch that is not 0 or 1, or a divisor below 0");
  for (size_t i = 0; i < 3; ++i) {
    const int64_t kernel = a[A::Kernel + i], pad = a[A::Pad + i];
    checkWindow(i + a[A::Spatial] >= 3, kernel, a[A::Stride + i], pad, a[A::Dilation + i]);
    refuseUnless(pad <= kernel / 2, "a padding of more than half of the window");
  }
}

void checkAverage(const Operator& op) {
  checkPool(op);
  for (size_t i = 0; i < 3; ++i) {
    refuseUnless(op.attributes[PoolAttributes::Dilation + i] == 1, "an average with a dilation");
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
      --out; // the last window must begin inside the input or the padding before it
    }
    size = out;
  }
  return sizes;
}

template <size_t Spatial>
std::vector<int64_t> poolAttributes(const RegionReader& reader, const Node* node) {
  using A = PoolAttributes;
  std::vector<int64_t> a(A::Count);
  const auto kernel = reader.integers(node, "kernel_size", Spatial);
  const auto given = reader.operand(node, "stride");
  const bool default_stride = given.isIntList() && given.toIntVector().empty();
  a[A::Spatial] = Spatial, a[A::Ceil] = reader.flag(node, "ceil_mode");
  setLast(a, A::Kernel, kernel, 1);
  setLast(a, A::Stride, default_stride ? kernel : reader.integers(node, "stride", Spatial), 1);
  setLast(a, A::Pad, reader.integers(node, "padding", Spatial), 0);
  setLast(a, A::Dilation, std::vector<int64_t>(Spatial, 1), 1);
  return a;
}

template <size_t Spatial>
Planned maxPool(const RegionReader& reader, Node* node) {
  auto a = poolAttributes<Spatial>(reader, node);
  setLast(a, PoolAttributes::Dilation, reader.integers(node, "dilation", Spatial), 1);
  return {{Kind("max_pool"), "", {}, 0, a, {}}, {node->input(0)}};
}

template <size_t Spatial>
Planned averagePool(const RegionReader& reader, Node* node) {
  auto a = poolAttributes<Spatial>(reader, node);
  a[PoolAttributes::CountPadding] = reader.flag(node, "count_include_pad");
  if (reader.has(node, "divisor_override")) {
    a[PoolAttributes::Divisor] = reader.integer(node, "divisor_override");
    refuseUnless(a[PoolAttributes::Divisor] > 0, "its divisor is not above 0");
  }
  return {{Kind("average_pool"), "", {}, 0, a, {}}, {node->input(0)}};
}

Part maxPoolKernel(const StepContext& c) {
  std::array<int64_t, 3> dilation;
  std::copy_n(c.op.attributes.begin() + PoolAttributes::Dilation, 3, dilation.begin());
  return largestOver(c, windowsOfPool(c), dilation, image(c.in()), image(c.out()));
}

Part averagePoolKernel(const StepContext& c) {
  const int64_t divisor = c.op.attributes[PoolAttributes::Divisor];
  return averageOver(c, windowsOfPool(c), divisor, image(c.in()), image(c.out()));
}

// Attributes: see PoolAttributes.
const RegisterOperator max_pool_operator{
    {.name = "max_pool",
     .attributes = {PoolAttributes::Count, PoolAttributes::Count},
     .types = Types::Same,
     .keeps_codes = true,
     .from = {{"max_pool1d", maxPool<1>}, {"max_pool2d", maxPool<2>}, {"max_pool3d", maxPool<3>}},
     .check = checkPool,
     .infer = sizesOfPool,
     .channels = axisInFront,
     .lower = lowerChannels,
     .kernel = maxPoolKernel}};
// Attributes: see PoolAttributes.
const RegisterOperator average_pool_operator{
    {.name = "average_pool",
     .attributes = {PoolAttributes::Count, PoolAttributes::Count},
     .types = Types::Same,
     .from = {{"avg_pool1d", averagePool<1>}, {"avg_pool2d", averagePool<2>}, {"avg_pool3d", averagePool<3>}},
     .check = checkAverage,
     .infer = sizesOfPool,
     .channels = axisInFront,
     .lower = lowerChannels,
     .kernel = averagePoolKernel}};

} // namespace

Windows windowsOfPool(const StepContext& c) {
  using A = PoolAttributes;
  const auto& a = c.op.attributes;
  const Image x = image(c.in()).image, y = image(c.out()).image;
  Windows windows;
  for (size_t i = 0; i < 3; ++i) {
    windows[i] = windowSpans(
        sizeOf(x, i), sizeOf(y, i), a[A::Kernel + i], a[A::Stride + i], a[A::Dilation + i], a[A::Pad + i],
        a[A::Pad + i], a[A::CountPadding] != 0);
  }
  return windows;
}

Windows adaptiveWindows(const Image& x, const Image& y) {
  Windows windows;
  for (size_t i = 0; i < 3; ++i) {
    windows[i] = adaptiveSpans(sizeOf(x, i), sizeOf(y, i));
  }
  return windows;
}

void joinChannels(Windows& windows, int64_t bytes, Image& x, Image& y) {
  int64_t Image::* const size[] = {&Image::depth, &Image::height, &Image::width};
  int64_t Image::* const stride[] = {&Image::plane, &Image::row, &Image::pixel};
  for (size_t i = 3; i-- > 0;) {
    const bool alone = std::all_of(windows[i].begin(), windows[i].end(), [&](const Span& span) {
      return span.begin == &span - windows[i].data() && span.end == span.begin + 1 && span.count == 1;
    });
    const auto dense = [&](const Image& image) {
      return image.*size[i] == 1 || image.*stride[i] == image.channels * bytes;
    };
    if (!alone || x.*size[i] != y.*size[i] || !dense(x) || !dense(y)) {
      return;
    }
    for (Image* image : {&x, &y}) {
      image->channels *= image->*size[i];
      image->*size[i] = 1;
    }
    windows[i].resize(1);
  }
}

Part largestOver(
    const StepContext& c, Windows windows, const std::array<int64_t, 3>& dilation, Placed x, Placed y) {
  joinChannels(windows, c.out().bytes(), x.image, y.image);
  const auto& [along_z, along_y, along_x] = windows;
  if (c.out().grid->is_float) {
    return unary(MaxFloats{along_z, along_y, along_x, dilation[0], dilation[1], dilation[2]}, x, y);
  }
  return unary(MaxPool{along_z, along_y, along_x, dilation[0], dilation[1], dilation[2]}, x, y);
}

Part averageOver(const StepContext& c, Windows windows, int64_t divisor, Placed x, Placed y) {
  joinChannels(windows, c.out().bytes(), x.image, y.image);
  const Grid &from = *c.in().grid, &to = c.grid();
  if (to.is_float) {
    return unary(AverageFloats{windows[0], windows[1], windows[2], divisor}, x, y);
  }
  int64_t pixels = 1;
  for (const auto& along : windows) {
    int64_t longest = 0;
    for (const Span& span : along) {
      longest = std::max(longest, span.end - span.begin);
    }
    pixels *= longest;
  }
  constexpr int64_t kMaxPixels = 1 << 22; // whose sum fits int32
  TORCH_CHECK(pixels <= kMaxPixels, c.op.name, " averages ", pixels, " values, more than ", kMaxPixels);
  AveragePool kernel{};
  kernel.z = windows[0], kernel.y = windows[1], kernel.x = windows[2];
  kernel.ratio = static_cast<double>(static_cast<float>(from.scale)) / static_cast<float>(to.scale);
  kernel.in_zero_point = from.zero_point, kernel.offset = offsetOf(to);
  kernel.divisor = divisor;
  kernel.range = codeRangeOf(to);
  return unary(std::move(kernel), x, y);
}

} // namespace jit_passes::x86
