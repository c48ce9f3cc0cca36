// Pools: the maximum or the average of a window, block of channels by block of channels.
#include <algorithm>

#include "plain.h"

namespace jit_passes::x86 {
namespace {

JIT_PASSES_VECTORIZED void takeLarger(const uint8_t* x, int64_t count, uint8_t* largest) {
  for (int64_t c = 0; c < count; ++c) {
    largest[c] = std::max(largest[c], x[c]);
  }
}

JIT_PASSES_VECTORIZED void addCodes(const uint8_t* x, int64_t count, int32_t* sums) {
  for (int64_t c = 0; c < count; ++c) {
    sums[c] += x[c];
  }
}

JIT_PASSES_VECTORIZED void storeAverages(
    const int32_t* sums, int64_t count, float multiplier, float offset, float low, float high, uint8_t* out) {
  for (int64_t c = 0; c < count; ++c) {
    out[c] = codeOf(__builtin_fmaf(sums[c], multiplier, offset), low, high);
  }
}

int64_t poolBlocks(const Image& image) { return (image.channels + kPlainBlock - 1) / kPlainBlock; }

// body(n, z, y, x, first, count) for the outputs of these items.
template <typename Body>
void overOutputs(const Image& out, int64_t begin, int64_t end, const Body& body) {
  const int64_t blocks = poolBlocks(out);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % blocks * kPlainBlock, row = item / blocks;
    const int64_t y = row % out.height, z = row / out.height % out.depth, n = row / out.height / out.depth;
    for (int64_t x = 0; x < out.width; ++x) {
      body(n, z, y, x, first, std::min(kPlainBlock, out.channels - first));
    }
  }
}

} // namespace

std::vector<Span> windowSpans(
    int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t dilation, int64_t pad_before,
    int64_t pad_after, bool include_pad) {
  std::vector<Span> spans(out);
  for (int64_t i = 0; i < out; ++i) {
    const int64_t begin = i * stride - pad_before;
    const int64_t end = std::min(begin + (kernel - 1) * dilation + 1, in + pad_after);
    // The first tap inside of the image.
    const int64_t inside = begin < 0 ? begin + (-begin + dilation - 1) / dilation * dilation : begin;
    const int64_t last = std::min(end, in);
    const int64_t taps = std::max<int64_t>(0, (last - inside + dilation - 1) / dilation);
    spans[i] = {inside, last, include_pad ? (end - begin + dilation - 1) / dilation : taps};
  }
  return spans;
}

std::vector<Span> adaptiveSpans(int64_t in, int64_t out) {
  std::vector<Span> spans(out);
  for (int64_t i = 0; i < out; ++i) {
    const int64_t begin = i * in / out, end = ((i + 1) * in + out - 1) / out;
    spans[i] = {begin, end, end - begin};
  }
  return spans;
}

int64_t MaxPool::items(const Image& out) const { return out.rows() * poolBlocks(out); }

void MaxPool::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  overOutputs(
      out, begin, end, [&](int64_t n, int64_t oz, int64_t oy, int64_t ox, int64_t first, int64_t count) {
        uint8_t largest[kPlainBlock] = {};
        for (int64_t iz = z[oz].begin; iz < z[oz].end; iz += dilation_d) {
          for (int64_t iy = y[oy].begin; iy < y[oy].end; iy += dilation_h) {
            for (int64_t ix = x[ox].begin; ix < x[ox].end; ix += dilation_w) {
              takeLarger(in.at(n, iz, iy, ix) + first, count, largest);
            }
          }
        }
        std::copy_n(largest, count, out.at(n, oz, oy, ox) + first);
      });
}

int64_t AveragePool::items(const Image& out) const { return out.rows() * poolBlocks(out); }

void AveragePool::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  overOutputs(
      out, begin, end, [&](int64_t n, int64_t oz, int64_t oy, int64_t ox, int64_t first, int64_t count) {
        const Span &sz = z[oz], &sy = y[oy], &sx = x[ox];
        const int64_t taps = (sz.end - sz.begin) * (sy.end - sy.begin) * (sx.end - sx.begin);
        int32_t sums[kPlainBlock];
        std::fill_n(sums, count, static_cast<int32_t>(-taps * in_zero_point));
        for (int64_t iz = sz.begin; iz < sz.end; ++iz) {
          for (int64_t iy = sy.begin; iy < sy.end; ++iy) {
            for (int64_t ix = sx.begin; ix < sx.end; ++ix) {
              addCodes(in.at(n, iz, iy, ix) + first, count, sums);
            }
          }
        }
        const int64_t by = divisor ? divisor : sz.count * sy.count * sx.count;
        storeAverages(
            sums, count, static_cast<float>(ratio / static_cast<double>(by)),
            static_cast<float>(out_zero_point), static_cast<float>(low), static_cast<float>(high),
            out.at(n, oz, oy, ox) + first);
      });
}

} // namespace jit_passes::x86
