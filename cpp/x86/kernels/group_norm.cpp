// Group norm over images.
#include <algorithm>

#include "attention.h"
#include "floats.h"
#include "plain.h"

namespace jit_passes::x86 {
namespace {

// The channels that are computed at one time. Small groups share a block; a large group is a block.
constexpr int64_t kGroupLanes = 32;
// The most codes that are added in int32 before the sum is added to one of 64 bits.
constexpr int64_t kMostInRow = 1 << 15;

struct Moments {
  int64_t sum = 0, squares = 0;
};

JIT_PASSES_VECTORIZED void addMoments(
    const uint8_t* in, int64_t pixels, int64_t stride, int64_t channels, Moments* moments) {
  int32_t sums[kGroupLanes] = {}, squares[kGroupLanes] = {};
  for (int64_t x = 0; x < pixels; ++x) {
    for (int64_t c = 0; c < channels; ++c) {
      const int32_t code = in[x * stride + c];
      sums[c] += code;
      squares[c] += code * code;
    }
  }
  for (int64_t c = 0; c < channels; ++c) {
    moments[c].sum += sums[c];
    moments[c].squares += squares[c];
  }
}

// The numbers of each channel, as in LayerNorm. `mean` is -mean * factor, or the mean itself for float32.
struct Lanes {
  float factor[kGroupLanes], mean[kGroupLanes], multiplier[kGroupLanes], offset[kGroupLanes];
};

JIT_PASSES_VECTORIZED void normalizePixels(
    const uint8_t* in, int64_t in_stride, int64_t pixels, int64_t channels, const Lanes& lanes,
    const CodeRange& range, uint8_t* out, int64_t out_stride) {
  const ToCode code(range);
  for (int64_t x = 0; x < pixels; ++x) {
    for (int64_t c = 0; c < channels; ++c) {
      const float y = __builtin_fmaf(in[x * in_stride + c], lanes.factor[c], lanes.mean[c]);
      out[x * out_stride + c] = code(__builtin_fmaf(y, lanes.multiplier[c], lanes.offset[c]));
    }
  }
}

struct FloatMoments {
  double sum = 0, squares = 0;
};

JIT_PASSES_VECTORIZED void addMoments(
    const float* in, int64_t pixels, int64_t stride, int64_t channels, FloatMoments* moments) {
  double sums[kGroupLanes] = {}, squares[kGroupLanes] = {};
  for (int64_t x = 0; x < pixels; ++x) {
    for (int64_t c = 0; c < channels; ++c) {
      const double number = in[x * stride + c];
      sums[c] += number;
      squares[c] += number * number;
    }
  }
  for (int64_t c = 0; c < channels; ++c) {
    moments[c].sum += sums[c];
    moments[c].squares += squares[c];
  }
}

// The mean is subtracted first: it may be large compared with the deviation, and a product would lose digits.
JIT_PASSES_VECTORIZED void normalizePixels(
    const float* in, int64_t in_stride, int64_t pixels, int64_t channels, const Lanes& lanes, float* out,
    int64_t out_stride) {
  float multiplier[kGroupLanes];
  for (int64_t c = 0; c < channels; ++c) {
    multiplier[c] = lanes.factor[c] * lanes.multiplier[c];
  }
  for (int64_t x = 0; x < pixels; ++x) {
    for (int64_t c = 0; c < channels; ++c) {
      const float centred = in[x * in_stride + c] - lanes.mean[c];
      out[x * out_stride + c] = __builtin_fmaf(centred, multiplier[c], lanes.offset[c]);
    }
  }
}

// Calls body(row) for each row of an image.
template <typename Body>
void overRowsOf(const Image& image, int64_t n, const Body& body) {
  for (int64_t row = n * image.depth * image.height; row < (n + 1) * image.depth * image.height; ++row) {
    body(row);
  }
}

int64_t groupsAtOnce(int64_t channels, int64_t groups) {
  return std::max<int64_t>(1, kGroupLanes * groups / channels);
}

int64_t blocksOf(const Image& out, int64_t groups) {
  const int64_t at_once = groupsAtOnce(out.channels, groups);
  return (groups + at_once - 1) / at_once;
}

// For each item: finds moments of its groups by add(first channel, channels, row, moments), the factor and the mean
// of each group by normal(moments), and results by write(first channel, channels, row, lanes).
template <typename Of, typename Norm, typename Add, typename Normal, typename Write>
void overGroups(
    const Norm& norm, const Image& in, const Image& out, int64_t begin, int64_t end, const float* multiplier,
    const float* offset, const Add& add, const Normal& normal, const Write& write) {
  const int64_t size = out.channels / norm.groups, at_once = groupsAtOnce(out.channels, norm.groups);
  const int64_t blocks = blocksOf(out, norm.groups);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t n = item / blocks, group = item % blocks * at_once;
    const int64_t first = group * size, last = std::min(group + at_once, norm.groups) * size;
    Of of_groups[kGroupLanes];
    for (int64_t c = first; c < last; c += kGroupLanes) {
      const int64_t channels = std::min(kGroupLanes, last - c);
      Of moments[kGroupLanes];
      overRowsOf(in, n, [&](int64_t row) { add(c, channels, row, moments); });
      for (int64_t i = 0; i < channels; ++i) {
        Of& whole = of_groups[(c + i - first) / size];
        whole.sum += moments[i].sum;
        whole.squares += moments[i].squares;
      }
    }
    for (int64_t c = first; c < last; c += kGroupLanes) {
      const int64_t channels = std::min(kGroupLanes, last - c);
      Lanes lanes;
      for (int64_t i = 0; i < channels; ++i) {
        const auto [factor, mean] = normal(of_groups[(c + i - first) / size]);
        lanes.factor[i] = factor, lanes.mean[i] = mean;
        lanes.multiplier[i] = multiplier[c + i], lanes.offset[i] = offset[c + i];
      }
      overRowsOf(out, n, [&](int64_t row) { write(c, channels, row, lanes); });
    }
  }
}

} // namespace

int64_t GroupNorm::items(const Image& out) const { return out.images * blocksOf(out, groups); }

void GroupNorm::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const int64_t count = out.channels / groups * out.depth * out.height * out.width;
  const auto add = [&](int64_t c, int64_t channels, int64_t row, Moments* moments) {
    for (int64_t x = 0; x < in.width; x += kMostInRow) {
      addMoments(
          in.rowAt(row) + x * in.pixel + c, std::min(kMostInRow, in.width - x), in.pixel, channels, moments);
    }
  };
  const auto normal = [&](const Moments& whole) { return normalOf(whole.sum, whole.squares, count, eps); };
  const auto write = [&](int64_t c, int64_t channels, int64_t row, const Lanes& lanes) {
    normalizePixels(
        in.rowAt(row) + c, in.pixel, out.width, channels, lanes, range, out.rowAt(row) + c, out.pixel);
  };
  overGroups<Moments>(*this, in, out, begin, end, multiplier, offset, add, normal, write);
}

int64_t GroupNormFloats::items(const Image& out) const { return out.images * blocksOf(out, groups); }

void GroupNormFloats::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const double share = 1 / static_cast<double>(out.channels / groups * out.depth * out.height * out.width);
  const auto floats = [](const Image& image, int64_t row, int64_t c) {
    return reinterpret_cast<float*>(image.rowAt(row)) + c;
  };
  const int64_t from = in.pixel / int64_t(sizeof(float)), to = out.pixel / int64_t(sizeof(float));
  const auto add = [&](int64_t c, int64_t channels, int64_t row, FloatMoments* moments) {
    addMoments(floats(in, row, c), in.width, from, channels, moments);
  };
  const auto normal = [&](const FloatMoments& whole) {
    const double mean = whole.sum * share, variance = std::max(whole.squares * share - mean * mean, 0.0);
    return std::pair(static_cast<float>(1 / std::sqrt(variance + eps)), static_cast<float>(mean));
  };
  const auto write = [&](int64_t c, int64_t channels, int64_t row, const Lanes& lanes) {
    normalizePixels(floats(in, row, c), from, out.width, channels, lanes, floats(out, row, c), to);
  };
  overGroups<FloatMoments>(*this, in, out, begin, end, weight, bias, add, normal, write);
}

} // namespace jit_passes::x86
