// Group norm over images.
#include <algorithm>

#include "plain.h"
#include "x86/attention.h"

namespace jit_passes::x86 {
namespace {

// So many channels are computed at once. Small groups make a block together, and large ones are one each.
constexpr int64_t kGroupLanes = 32;
// As many codes are added up in int32 before they go on in 64 bits.
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

// Channel by channel: as `LayerNorm` has it, with a factor and an offset of each.
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

// body(row) for each of an image.
template <typename Body>
void overRowsOf(const Image& image, int64_t n, const Body& body) {
  for (int64_t row = n * image.depth * image.height; row < (n + 1) * image.depth * image.height; ++row) {
    body(row);
  }
}

int64_t groupsAtOnce(int64_t channels, int64_t groups) {
  return std::max<int64_t>(1, kGroupLanes * groups / channels);
}

} // namespace

int64_t GroupNorm::items(const Image& out) const {
  const int64_t at_once = groupsAtOnce(out.channels, groups);
  return out.images * ((groups + at_once - 1) / at_once);
}

void GroupNorm::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const int64_t size = out.channels / groups, at_once = groupsAtOnce(out.channels, groups);
  const int64_t blocks = (groups + at_once - 1) / at_once;
  const int64_t count = size * out.depth * out.height * out.width;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t n = item / blocks, group = item % blocks * at_once;
    const int64_t first = group * size, last = std::min(group + at_once, groups) * size;
    Moments of_groups[kGroupLanes];
    for (int64_t c = first; c < last; c += kGroupLanes) {
      const int64_t channels = std::min(kGroupLanes, last - c);
      Moments moments[kGroupLanes];
      overRowsOf(in, n, [&](int64_t row) {
        for (int64_t x = 0; x < in.width; x += kMostInRow) {
          addMoments(
              in.rowAt(row) + x * in.pixel + c, std::min(kMostInRow, in.width - x), in.pixel, channels,
              moments);
        }
      });
      for (int64_t i = 0; i < channels; ++i) {
        Moments& whole = of_groups[(c + i - first) / size];
        whole.sum += moments[i].sum;
        whole.squares += moments[i].squares;
      }
    }
    for (int64_t c = first; c < last; c += kGroupLanes) {
      const int64_t channels = std::min(kGroupLanes, last - c);
      Lanes lanes;
      for (int64_t i = 0; i < channels; ++i) {
        const Moments& whole = of_groups[(c + i - first) / size];
        const auto [factor, mean] = normalOf(whole.sum, whole.squares, count, eps);
        lanes.factor[i] = factor, lanes.mean[i] = mean;
        lanes.multiplier[i] = multiplier[c + i], lanes.offset[i] = offset[c + i];
      }
      overRowsOf(out, n, [&](int64_t row) {
        normalizePixels(
            in.rowAt(row) + c, in.pixel, out.width, channels, lanes, range, out.rowAt(row) + c, out.pixel);
      });
    }
  }
}

} // namespace jit_passes::x86
