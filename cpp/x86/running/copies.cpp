#include "copies.h"

namespace jit_passes::x86 {

void padRows(
    const Image& in, const std::array<int64_t, 4>& offset, uint8_t zero, const Image& out, int64_t begin,
    int64_t end) {
  const auto inside = [](int64_t i, int64_t size) { return i >= 0 && i < size; };
  for (int64_t index = begin; index < end; ++index) {
    const int64_t y = index % out.height - offset[2], z = index / out.height % out.depth - offset[1];
    const int64_t n = index / out.height / out.depth - offset[0];
    const bool row = inside(n, in.images) && inside(z, in.depth) && inside(y, in.height);
    for (int64_t x = 0; x < out.width; ++x) {
      uint8_t* to = out.rowAt(index) + x * out.pixel;
      if (row && inside(x - offset[3], in.width)) {
        std::memcpy(to, in.at(n, z, y, x - offset[3]), out.channels);
      } else {
        std::memset(to, zero, out.channels);
      }
    }
  }
}

namespace {

// The positions of a result's elements along an axis of the operand.
class Places {
 public:
  Places(int64_t in, int64_t out, std::optional<double> factor, bool aligns_corners)
      : aligns_corners_(aligns_corners),
        apart_(
            aligns_corners ? out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0F
            : factor       ? static_cast<float>(1.0 / *factor)
                           : static_cast<float>(in) / out) {}

  float operator[](int64_t i) const { return aligns_corners_ ? apart_ * i : apart_ * (i + 0.5F) - 0.5F; }

 private:
  bool aligns_corners_;
  float apart_;
};

// Keys, "Cubic Convolution Interpolation for Digital Image Processing", 1981,
// https://doi.org/10.1109/TASSP.1981.1163711, with PyTorch's parameter: the weight of an element at a distance up to
// 1, and from 1 to 2.
float nearShare(float x) {
  constexpr float kA = -0.75;
  return ((kA + 2) * x - (kA + 3)) * x * x + 1;
}

float farShare(float x) {
  constexpr float kA = -0.75;
  return ((kA * x - 5 * kA) * x + 8 * kA) * x - 4 * kA;
}

} // namespace

std::vector<CubicFloats::Taps> cubicTaps(
    int64_t in, int64_t out, std::optional<double> factor, bool aligns_corners) {
  const Places places(in, out, factor, aligns_corners);
  std::vector<CubicFloats::Taps> taps(out);
  for (int64_t i = 0; i < out; ++i) {
    const int64_t below = std::min(static_cast<int64_t>(std::floor(places[i])), in - 1);
    const float part = std::clamp(places[i] - below, 0.0F, 1.0F), rest = 1 - part;
    const std::array<float, 4> shares{
        farShare(part + 1), nearShare(part), nearShare(rest), farShare(rest + 1)};
    for (int64_t j = 0; j < 4; ++j) {
      taps[i].at[j] = std::clamp(below + j - 1, int64_t{0}, in - 1), taps[i].share[j] = shares[j];
    }
  }
  return taps;
}

std::vector<Blend::Taps> blendedTaps(
    int64_t in, int64_t out, std::optional<double> factor, bool aligns_corners) {
  const Places places(in, out, factor, aligns_corners);
  std::vector<Blend::Taps> taps(out);
  for (int64_t i = 0; i < out; ++i) {
    if (in == out) { // ATen copies for any factor
      taps[i] = {i, i, 0.0F};
      continue;
    }
    const float at = std::max(places[i], 0.0F);
    const int64_t first = std::min(static_cast<int64_t>(at), in - 1);
    taps[i] = {first, std::min(first + 1, in - 1), std::clamp(at - first, 0.0F, 1.0F)};
  }
  return taps;
}

std::vector<int64_t> nearestExact(int64_t in, int64_t out, std::optional<double> factor) {
  const float scale = factor ? static_cast<float>(1.0 / *factor) : static_cast<float>(in) / out;
  std::vector<int64_t> from(out);
  for (int64_t i = 0; i < out; ++i) {
    const float centre = std::max(scale * (i + 0.5F) - 0.5F, 0.0F);
    from[i] = std::min(static_cast<int64_t>(std::floor(static_cast<float>(centre + 0.5))), in - 1);
  }
  return from;
}

std::vector<int64_t> nearest(int64_t in, int64_t out, std::optional<double> factor, bool flat) {
  const float scale = factor ? static_cast<float>(1.0 / *factor) : static_cast<float>(in) / out;
  std::vector<int64_t> from(out);
  for (int64_t i = 0; i < out; ++i) {
    const int64_t scaled = std::min(static_cast<int64_t>(std::floor(i * scale)), in - 1);
    from[i] = flat && out == in ? i : flat && out == 2 * in ? i / 2 : scaled;
  }
  return from;
}

} // namespace jit_passes::x86
