// A pixel i and a tap k add to the result o = i * stride - padding + k * dilation. So results with the same remainder
// of o + padding by the stride have the same taps. With g = gcd(stride, dilation) these are k = first_tap + m * stride
// / g, and tap m of the result o = first + j * stride reads the pixel
//
//   i = j + base - m * dilation / g,   base = (first + padding - first_tap * dilation) / stride
//
// With m counted from the last tap on, this is a convolution of stride 1 with the dilation dilation / g and the
// padding (count - 1) * dilation / g - base, which is negative if the first pixels are not read. No tap reaches
// results whose remainder is no multiple of g, or whose first tap is beyond the window: they get one tap of zeros.
#include "transposed.h"

#include <numeric>

namespace jit_passes::x86 {
namespace {

Residue residueOf(int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, int64_t first) {
  const int64_t g = std::gcd(stride, dilation), step = stride / g;
  int64_t tap = 0;
  while (tap < step && (first + padding - tap * dilation) % stride != 0) {
    ++tap;
  }
  if (tap == step || tap >= kernel) {
    return {first, stride, 0, step, 0, 1, 0};
  }
  const int64_t count = (kernel - 1 - tap) / step + 1, base = (first + padding - tap * dilation) / stride;
  return {first, stride, tap, step, count, dilation / g, (count - 1) * (dilation / g) - base};
}

} // namespace

Window Residues::window(int64_t groups) const {
  Window window;
  const auto& [z, y, x] = axes;
  window.kernel_d = std::max<int64_t>(z.count, 1), window.kernel_h = std::max<int64_t>(y.count, 1);
  window.kernel_w = std::max<int64_t>(x.count, 1);
  window.dilation_d = z.dilation, window.dilation_h = y.dilation, window.dilation_w = x.dilation;
  window.pad_front = z.pad, window.pad_top = y.pad, window.pad_left = x.pad;
  window.groups = groups;
  return window;
}

at::Tensor Residues::taps(at::Tensor weight) const {
  for (int64_t axis = 0; axis < 3; ++axis) {
    const auto& [first, stride, tap, step, count, dilation, pad] = axes[axis];
    weight = weight.slice(2 + axis, tap, count > 0 ? tap + (count - 1) * step + 1 : tap, step);
  }
  return weight;
}

Image Residues::resultsOf(Image all) const {
  const auto& [z, y, x] = axes;
  all.depth = z.results(all.depth), all.plane *= z.stride;
  all.height = y.results(all.height), all.row *= y.stride;
  all.width = x.results(all.width), all.pixel *= x.stride;
  return all;
}

int64_t Residues::offsetIn(const Image& all) const {
  return axes[0].first * all.plane + axes[1].first * all.row + axes[2].first * all.pixel;
}

std::vector<Residues> residuesOf(const Operator& op) {
  using A = ConvolutionAttributes;
  std::array<std::vector<Residue>, 3> along;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t stride = op.attributes[A::Stride + i];
    for (int64_t first = 0; first < stride; ++first) {
      along[i].push_back(residueOf(
          op.tensors[kWeight].size(2 + i), stride, op.attributes[A::PadBefore + i],
          op.attributes[A::Dilation + i], first));
    }
  }
  std::vector<Residues> all;
  for (const Residue& z : along[0]) {
    for (const Residue& y : along[1]) {
      for (const Residue& x : along[2]) {
        all.push_back({{z, y, x}});
      }
    }
  }
  return all;
}

} // namespace jit_passes::x86
