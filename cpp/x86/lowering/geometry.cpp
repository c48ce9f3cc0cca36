#include "geometry.h"

#include "transposed.h"

namespace jit_passes::x86 {
namespace {

// If there are fewer rows, they are divided into parts of at least kRowBytes bytes.
constexpr int64_t kFewRows = 16, kRowBytes = 256;

} // namespace

Border borderOf(const Operator& op, const Packed& packed, const Image& in, const Image& out) {
  if (!isTransposed(op.kind)) {
    return packed.kernel().border(in, out);
  }
  Border border;
  const auto residues = residuesOf(op);
  for (size_t i = 0; i < residues.size(); ++i) {
    widen(border, packed.kernel(i).border(in, residues[i].resultsOf(out)));
  }
  return border;
}

void widen(Border& border, const Border& by) {
  border.top = std::max(border.top, by.top), border.bottom = std::max(border.bottom, by.bottom);
  border.left = std::max(border.left, by.left), border.right = std::max(border.right, by.right);
  border.front = std::max(border.front, by.front), border.back = std::max(border.back, by.back);
}

Dims axisDims(const Sizes& sizes, int64_t axis) {
  std::vector<Dim> all;
  for (int64_t i = 0; i < int64_t(sizes.size()); ++i) {
    if (i != axis) {
      all.push_back({sizes[i], i, 1});
    }
  }
  Dims dims;
  while (all.size() > dims.size() && int64_t(sizes.size()) > kMostPlanAxes) {
    size_t second = 1; // the second of two neighbouring axes to join
    while (all[second].axis != all[second - 1].axis + 1) {
      ++second;
    }
    all[second].size *= all[second - 1].size;
    all.erase(all.begin() + second - 1);
  }
  TORCH_CHECK(
      all.size() <= dims.size(), "a plan takes up to ", dims.size(),
      " axes besides the channels, got the shape ", sizes);
  std::copy(all.begin(), all.end(), dims.end() - all.size());
  return dims;
}

int64_t linesOf(const Dims& dims) { return dims[0].size * dims[1].size * dims[2].size; }

Dims pixelDims(const Sizes& sizes, int64_t axis) {
  Dims dims = axisDims(sizes, axis);
  const int64_t width = dims[3].size, channels = axis < 0 ? 1 : sizes[axis];
  for (int64_t part = 1; linesOf(dims) < kFewRows && dims[0].axis < 0 && part < width; ++part) {
    if (width % part == 0 && part * channels >= kRowBytes) {
      const int64_t last = dims[3].axis;
      return {dims[1], dims[2], Dim{width / part, last, part}, Dim{part, last, 1}};
    }
  }
  return dims;
}

Dims alongNeighbours(Dims dims, at::IntArrayRef strides, int64_t channel, int64_t unit) {
  const auto neighbours = std::ranges::find_if(dims, [&](const Dim& dim) {
    return dim.axis >= 0 && dim.size > 1 && strides[dim.axis] * dim.factor == unit;
  });
  if (channel != unit && neighbours != dims.end()) {
    std::swap(*neighbours, dims.back());
  }
  return dims;
}

Dims imageDims(const Sizes& sizes, int64_t axis) {
  TORCH_INTERNAL_ASSERT(axis == 0 || axis == 1, "an image has one axis in front of its channels at most");
  Dims dims = axisDims({sizes.begin() + axis, sizes.end()}, 0);
  for (Dim& dim : dims) {
    dim.axis += dim.axis < 0 ? 0 : axis;
  }
  if (axis == 1) {
    dims[0] = {sizes[0], 0, 1};
  }
  return dims;
}

Image imageOf(const Dims& dims, const Sizes& strides, int64_t channels, int64_t bytes) {
  const auto stride = [&](const Dim& dim) { return dim.axis < 0 ? 0 : strides[dim.axis] * dim.factor; };
  Image image;
  image.images = dims[0].size, image.depth = dims[1].size;
  image.height = dims[2].size, image.width = dims[3].size;
  image.channels = channels;
  image.image = stride(dims[0]), image.plane = stride(dims[1]), image.row = stride(dims[2]);
  image.pixel = dims[3].axis < 0 ? channels * bytes : stride(dims[3]);
  return image;
}

} // namespace jit_passes::x86
