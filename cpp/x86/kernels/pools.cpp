// Pools: the maximum or the average of a window, block of channels by block of channels.
#include <algorithm>
#include <limits>

#include "avx2.h"
#include "floats.h"
#include "kept_rows.h"
#include "plain.h"
#include "vnni.h"

namespace jit_passes::x86 {
namespace {

JIT_PASSES_VECTORIZED void takeLarger(const uint8_t* x, int64_t count, uint8_t* largest) {
  for (int64_t c = 0; c < count; ++c) {
    largest[c] = std::max(largest[c], x[c]);
  }
}

// A NaN stays NaN.
JIT_PASSES_VECTORIZED void takeLargerFloats(const float* x, int64_t count, float* largest) {
  for (int64_t c = 0; c < count; ++c) {
    largest[c] = largest[c] >= x[c] || largest[c] != largest[c] ? largest[c] : x[c];
  }
}

JIT_PASSES_VECTORIZED void addCodes(const uint8_t* x, int64_t count, int32_t* sums) {
  for (int64_t c = 0; c < count; ++c) {
    sums[c] += x[c];
  }
}

JIT_PASSES_VECTORIZED void addPixel(const float* x, int64_t count, float* sums) {
  for (int64_t c = 0; c < count; ++c) {
    sums[c] += x[c];
  }
}

JIT_PASSES_VECTORIZED void storeShares(const float* sums, int64_t count, float by, float* out) {
  for (int64_t c = 0; c < count; ++c) {
    out[c] = sums[c] / by;
  }
}

JIT_PASSES_VECTORIZED void storeAverages(
    const int32_t* sums, int64_t count, float multiplier, float offset, const CodeRange& range,
    uint8_t* out) {
  const ToCode code(range);
  for (int64_t c = 0; c < count; ++c) {
    out[c] = code(__builtin_fmaf(sums[c], multiplier, offset));
  }
}

// The pixels of one window, and a block of their channels.
struct PoolWindow {
  const uint8_t* first;
  int64_t count;
  int64_t size[3], step[3]; // taps, and bytes from one to the next, along each axis
};

void largestPlain(const PoolWindow& w, uint8_t* out) {
  uint8_t largest[kPlainBlock] = {};
  for (int64_t z = 0; z < w.size[0]; ++z) {
    for (int64_t y = 0; y < w.size[1]; ++y) {
      for (int64_t x = 0; x < w.size[2]; ++x) {
        takeLarger(w.first + z * w.step[0] + y * w.step[1] + x * w.step[2], w.count, largest);
      }
    }
  }
  std::copy_n(largest, w.count, out);
}

// Calls take(pixel, count, results) for each pixel.
template <typename Take>
void overFloats(const PoolWindow& w, const Take& take, float* results) {
  for (int64_t z = 0; z < w.size[0]; ++z) {
    for (int64_t y = 0; y < w.size[1]; ++y) {
      for (int64_t x = 0; x < w.size[2]; ++x) {
        const uint8_t* pixel = w.first + z * w.step[0] + y * w.step[1] + x * w.step[2];
        take(reinterpret_cast<const float*>(pixel), w.count, results);
      }
    }
  }
}

void averageOfFloats(const PoolWindow& w, float by, float* out) {
  float sums[kPlainBlock] = {};
  overFloats(w, addPixel, sums);
  storeShares(sums, w.count, by, out);
}

void largestOfFloats(const PoolWindow& w, float* out) {
  float largest[kPlainBlock];
  std::fill_n(largest, kPlainBlock, -std::numeric_limits<float>::infinity());
  overFloats(w, takeLargerFloats, largest);
  std::copy_n(largest, w.count, out);
}

// The code of an average is the code of fma(sum + start, multiplier, offset).
struct PoolScale {
  int32_t start;
  float multiplier, offset;
  CodeRange range;
};

void averagePlain(const PoolWindow& w, const PoolScale& scale, uint8_t* out) {
  int32_t sums[kPlainBlock];
  std::fill_n(sums, w.count, scale.start);
  for (int64_t z = 0; z < w.size[0]; ++z) {
    for (int64_t y = 0; y < w.size[1]; ++y) {
      for (int64_t x = 0; x < w.size[2]; ++x) {
        addCodes(w.first + z * w.step[0] + y * w.step[1] + x * w.step[2], w.count, sums);
      }
    }
  }
  storeAverages(sums, w.count, scale.multiplier, scale.offset, scale.range, out);
}

#ifdef JIT_PASSES_HAS_VNNI

// Prefetches two pixels of 64 channels, or four of 32, for later windows of the row. If an image is larger than the
// second cache, this halves the time of a pool.
JIT_PASSES_VNNI_INLINE void fetchPixels(const uint8_t* from) {
  constexpr int64_t kAhead = 1024;
  _mm_prefetch(reinterpret_cast<const char*>(from + kAhead), _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char*>(from + kAhead + 64), _MM_HINT_T0);
}

JIT_PASSES_VNNI void largestVnni(const PoolWindow& w, uint8_t* out) {
  const auto lanes = static_cast<__mmask64>(firstLanes(w.count));
  __m512i largest = _mm512_setzero_si512();
  for (int64_t z = 0; z < w.size[0]; ++z) {
    for (int64_t y = 0; y < w.size[1]; ++y) {
      const uint8_t* from = w.first + z * w.step[0] + y * w.step[1];
      fetchPixels(from);
      for (int64_t x = 0; x < w.size[2]; ++x, from += w.step[2]) {
        largest = _mm512_max_epu8(largest, _mm512_maskz_loadu_epi8(lanes, from));
      }
    }
  }
  _mm512_mask_storeu_epi8(out, lanes, largest);
}

JIT_PASSES_VNNI_INLINE void addHalves(__m512i lower, __m512i upper, __m512i (&sums)[4]) {
  const __m512i zero = _mm512_setzero_si512();
  sums[0] = _mm512_add_epi32(sums[0], _mm512_unpacklo_epi16(lower, zero));
  sums[1] = _mm512_add_epi32(sums[1], _mm512_unpackhi_epi16(lower, zero));
  sums[2] = _mm512_add_epi32(sums[2], _mm512_unpacklo_epi16(upper, zero));
  sums[3] = _mm512_add_epi32(sums[3], _mm512_unpackhi_epi16(upper, zero));
}

// Sums of 16 bits hold up to 257 codes. Sums of 32 bits have four neighbouring channels in each lane, an order that
// packing undoes.
JIT_PASSES_VNNI void averageVnni(const PoolWindow& w, const PoolScale& scale, uint8_t* out) {
  constexpr int64_t kMost = 257;
  const auto lanes = static_cast<__mmask64>(firstLanes(w.count));
  const __m512i zero = _mm512_setzero_si512();
  __m512i sums[4], lower = zero, upper = zero;
  std::fill_n(sums, 4, _mm512_set1_epi32(scale.start));
  int64_t room = kMost;
  for (int64_t z = 0; z < w.size[0]; ++z) {
    for (int64_t y = 0; y < w.size[1]; ++y) {
      const uint8_t* from = w.first + z * w.step[0] + y * w.step[1];
      fetchPixels(from);
      for (int64_t left = w.size[2]; left > 0;) {
        if (room == 0) {
          addHalves(lower, upper, sums);
          lower = upper = zero;
          room = kMost;
        }
        const int64_t taps = std::min(left, room);
        left -= taps, room -= taps;
        for (int64_t x = 0; x < taps; ++x, from += w.step[2]) {
          const __m512i codes = _mm512_maskz_loadu_epi8(lanes, from);
          lower = _mm512_add_epi16(lower, _mm512_unpacklo_epi8(codes, zero));
          upper = _mm512_add_epi16(upper, _mm512_unpackhi_epi8(codes, zero));
        }
      }
    }
  }
  addHalves(lower, upper, sums);
  const __m512 multiplier = _mm512_set1_ps(scale.multiplier), offset = _mm512_set1_ps(scale.offset);
  __m512 v[4];
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i]), multiplier, offset);
  }
  const __m512i codes = packCodes(v[0], v[1], v[2], v[3], roundingTo(scale.range));
  _mm512_mask_storeu_epi8(out, lanes, codes);
}

#else
constexpr auto largestVnni = largestPlain;
constexpr auto averageVnni = averagePlain;
#endif

#ifdef JIT_PASSES_HAS_AVX2

// Bytes after the channels are read too.
template <bool kTwo>
JIT_PASSES_AVX2 void largestOfChannels(const PoolWindow& w, uint8_t* out) {
  __m256i largest[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int64_t z = 0; z < w.size[0]; ++z) {
    for (int64_t y = 0; y < w.size[1]; ++y) {
      const uint8_t* from = w.first + z * w.step[0] + y * w.step[1];
      for (int64_t x = 0; x < w.size[2]; ++x, from += w.step[2]) {
        for (int i = 0; i < (kTwo ? 2 : 1); ++i) {
          const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i);
          largest[i] = _mm256_max_epu8(largest[i], codes);
        }
      }
    }
  }
  storeFirst(out, largest[0], w.count);
  if constexpr (kTwo) {
    storeFirst(out + 32, largest[1], w.count - 32);
  }
}

void largestAvx2(const PoolWindow& w, uint8_t* out) {
  w.count > 32 ? largestOfChannels<true>(w, out) : largestOfChannels<false>(w, out);
}

#else
constexpr auto largestAvx2 = largestPlain;
#endif

int64_t poolBlocks(const Image& image) { return (image.channels + kPlainBlock - 1) / kPlainBlock; }

// Calls body(window, spans of z, y and x, out) for the outputs of these items.
template <typename Element = uint8_t, typename Pool, typename Body>
void overOutputs(
    const Pool& pool, const int64_t (&dilation)[3], const Image& in, const Image& out, int64_t begin,
    int64_t end, const Body& body) {
  const int64_t blocks = poolBlocks(out);
  const int64_t strides[] = {in.plane, in.row, in.pixel};
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % blocks * kPlainBlock, row = item / blocks;
    const int64_t y = row % out.height, z = row / out.height % out.depth, n = row / out.height / out.depth;
    for (int64_t x = 0; x < out.width; ++x) {
      const Span spans[] = {pool.z[z], pool.y[y], pool.x[x]};
      PoolWindow window{
          in.at(n, spans[0].begin, spans[1].begin, spans[2].begin) + first * sizeof(Element),
          std::min(kPlainBlock, out.channels - first),
          {},
          {}};
      for (int i = 0; i < 3; ++i) {
        const int64_t reach = spans[i].end - spans[i].begin;
        window.size[i] = dilation[i] == 1 ? reach : (reach + dilation[i] - 1) / dilation[i];
        window.step[i] = dilation[i] * strides[i];
      }
      body(window, spans, reinterpret_cast<Element*>(out.at(n, z, y, x)) + first);
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
  const auto largest = form == Form::Plain ? largestPlain : form >= Form::Avx512 ? largestVnni : largestAvx2;
  overOutputs(
      *this, {dilation_d, dilation_h, dilation_w}, in, out, begin, end,
      [&](const PoolWindow& window, const Span* /*spans*/, uint8_t* to) { largest(window, to); });
}

int64_t MaxFloats::items(const Image& out) const { return out.rows() * poolBlocks(out); }

void MaxFloats::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  overOutputs<float>(
      *this, {dilation_d, dilation_h, dilation_w}, in, out, begin, end,
      [&](const PoolWindow& window, const Span* /*spans*/, float* to) { largestOfFloats(window, to); });
}

int64_t AverageFloats::items(const Image& out) const { return out.rows() * poolBlocks(out); }

void AverageFloats::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  overOutputs<float>(
      *this, {1, 1, 1}, in, out, begin, end, [&](const PoolWindow& window, const Span* spans, float* to) {
        const int64_t by = divisor ? divisor : spans[0].count * spans[1].count * spans[2].count;
        averageOfFloats(window, static_cast<float>(by), to);
      });
}

int64_t AveragePool::items(const Image& out) const { return out.rows() * poolBlocks(out); }

void AveragePool::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const auto average = form >= Form::Avx512 ? averageVnni : averagePlain;
  overOutputs(
      *this, {1, 1, 1}, in, out, begin, end, [&](const PoolWindow& window, const Span* spans, uint8_t* to) {
        const int64_t taps = window.size[0] * window.size[1] * window.size[2];
        const int64_t by = divisor ? divisor : spans[0].count * spans[1].count * spans[2].count;
        average(
            window,
            {static_cast<int32_t>(-taps * in_zero_point), static_cast<float>(ratio / static_cast<double>(by)),
             offset, range},
            to);
      });
}

namespace {

// Interpolates along one row of the input, whose pixels are `pixel` elements apart, between the pixels of `taps`.
#define JIT_PASSES_ALONG(Name, Element)                                                            \
  JIT_PASSES_VECTORIZED void Name(                                                                 \
      const Element* row, int64_t pixel, const Blend::Taps* taps, int64_t count, int64_t channels, \
      float* __restrict out) {                                                                     \
    for (int64_t i = 0; i < count; ++i) {                                                          \
      const Element *first = row + taps[i].first * pixel, *second = row + taps[i].second * pixel;  \
      const float share = taps[i].share;                                                           \
      for (int64_t c = 0; c < channels; ++c) {                                                     \
        const float a = first[c];                                                                  \
        out[i * channels + c] = __builtin_fmaf(second[c] - a, share, a);                           \
      }                                                                                            \
    }                                                                                              \
  }
// A macro, since a template cannot be compiled for each level of vector instructions.
JIT_PASSES_ALONG(alongCodes, uint8_t)
JIT_PASSES_ALONG(alongFloats, float)
#undef JIT_PASSES_ALONG

// The rows of a plane, or of two planes, between which a row of the output is interpolated, from alongCodes or
// alongFloats.
struct Between {
  const float *top, *bottom, *back_top, *back_bottom; // the second plane's are null if there is only one
  float across, planes;
};

[[gnu::always_inline]] inline float blended(const Between& rows, int64_t i) {
  const float front = __builtin_fmaf(rows.bottom[i] - rows.top[i], rows.across, rows.top[i]);
  if (rows.back_top == nullptr) {
    return front;
  }
  const float back = __builtin_fmaf(rows.back_bottom[i] - rows.back_top[i], rows.across, rows.back_top[i]);
  return __builtin_fmaf(back - front, rows.planes, front);
}

// Without `restrict`, the loop would compute bytes one by one.
JIT_PASSES_VECTORIZED void blendCodes(
    const Between& given, int64_t count, const Blend& blend, uint8_t* __restrict out) {
  const ToCode code(blend.range);
  const float ratio = blend.ratio, offset = blend.offset;
  const Between rows = given;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = code(__builtin_fmaf(blended(rows, i), ratio, offset));
  }
}

JIT_PASSES_VECTORIZED void blendFloats(const Between& given, int64_t count, float* __restrict out) {
  const Between rows = given;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = blended(rows, i);
  }
}

// Computes rows of the output, some pixels and channels at a time, by along(row, pixel, taps, count, channels,
// values) and store(rows, count, out).
template <typename Element, typename Taken, typename Along, typename Store>
void overBlends(
    const Taken& taps, const Image& in, const Image& out, int64_t begin, int64_t end, const Along& along,
    const Store& store) {
  constexpr int64_t kBytes = sizeof(Element);
  for (int64_t c = 0; c < out.channels; c += kKept) {
    const int64_t channels = std::min(kKept, out.channels - c);
    const int64_t most = kKept / channels;
    for (int64_t x = 0; x < out.width; x += most) {
      const int64_t pixels = std::min(most, out.width - x);
      const bool dense = out.pixel == channels * kBytes;
      KeptRows kept;
      for (int64_t row = begin; row < end; ++row) {
        const int64_t n = row / out.height / out.depth;
        const Blend::Taps& y = taps.y[row % out.height];
        const Blend::Taps& z = taps.z[row / out.height % out.depth];
        const uint8_t* rows[4];
        int count = 0;
        for (const int64_t plane : {z.first, z.second}) {
          rows[count++] = in.at(n, plane, y.first, 0) + c * kBytes;
          rows[count++] = in.at(n, plane, y.second, 0) + c * kBytes;
        }
        const float* found[4] = {};
        const auto make = [&](const uint8_t* from, float* values) {
          along(
              reinterpret_cast<const Element*>(from), in.pixel / kBytes, &taps.x[x], pixels, channels,
              values);
        };
        kept.find(rows, z.first == z.second ? 2 : 4, make, found);
        for (int64_t i = 0; i < (dense ? 1 : pixels); ++i) {
          const auto at = [&](int k) { return found[k] ? found[k] + i * channels : nullptr; };
          store(
              Between{at(0), at(1), at(2), at(3), y.share, z.share}, dense ? pixels * channels : channels,
              reinterpret_cast<Element*>(out.rowAt(row) + (x + i) * out.pixel + c * kBytes));
        }
      }
    }
  }
}

} // namespace

void Blend::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  overBlends<uint8_t>(
      *this, in, out, begin, end, alongCodes,
      [&](const Between& rows, int64_t count, uint8_t* to) { blendCodes(rows, count, *this, to); });
}

void BlendFloats::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  overBlends<float>(*this, in, out, begin, end, alongFloats, blendFloats);
}

} // namespace jit_passes::x86
