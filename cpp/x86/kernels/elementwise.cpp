// Sums, products and tables of codes.
#include <algorithm>
#include <cstring>

#include "plain.h"
#include "vnni.h"

namespace jit_passes::x86 {
namespace {

JIT_PASSES_VECTORIZED void addPlain(
    const uint8_t* a, const uint8_t* b, int64_t count, const Add& add, uint8_t* out) {
  const float m = add.a_multiplier, k = add.b_multiplier, offset = add.offset;
  const ToCode code(add.range);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = code(__builtin_fmaf(a[i], m, __builtin_fmaf(b[i], k, offset)));
  }
  lookUpInPlace(out, count, add.table);
}

JIT_PASSES_VECTORIZED void multiplyRun(
    const uint8_t* a, const uint8_t* b, int64_t count, const Multiply& multiply, uint8_t* out) {
  const int32_t za = multiply.a_zero_point, zb = multiply.b_zero_point;
  const float m = multiply.multiplier, offset = multiply.offset;
  const ToCode code(multiply.range);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = code(__builtin_fmaf((a[i] - za) * (b[i] - zb), m, offset));
  }
  lookUpInPlace(out, count, multiply.table);
}

// Neighbouring pixels of two images, with `count` codes each.
struct PixelRun {
  const uint8_t* in;
  uint8_t* out;
  int64_t in_step, out_step, pixels, count;
};

JIT_PASSES_VECTORIZED void lookUpRun(const PixelRun& run, const uint8_t* table) {
  const uint8_t* in = run.in;
  uint8_t* out = run.out;
  for (int64_t x = 0; x < run.pixels; ++x, in += run.in_step, out += run.out_step) {
    for (int64_t i = 0; i < run.count; ++i) {
      out[i] = table[in[i]];
    }
  }
}

JIT_PASSES_VECTORIZED void preluPixel(
    const uint8_t* in, const Prelu& prelu, const float* __restrict below, int64_t count,
    uint8_t* __restrict out) {
  const ToCode code(prelu.range);
  const float above = prelu.above, offset = prelu.offset;
  const int32_t zero_point = prelu.in_zero_point;
  for (int64_t c = 0; c < count; ++c) {
    const int32_t x = in[c] - zero_point;
    out[c] = code(__builtin_fmaf(static_cast<float>(x), x > 0 ? above : below[c], offset));
  }
}

#ifdef JIT_PASSES_HAS_VNNI

template <bool kFull>
JIT_PASSES_VNNI_INLINE void storeCodes(
    const __m512 (&v)[4], int64_t count, const Rounding& rounding, const uint8_t* table, uint8_t* out) {
  __m512i codes = roundToCodes(v[0], v[1], v[2], v[3], rounding);
  codes = table ? lookUp(codes, loadTable(table)) : codes;
  if constexpr (kFull) {
    _mm512_storeu_si512(out, codes);
  } else {
    _mm512_mask_storeu_epi8(out, firstLanes(count), codes);
  }
}

// 16 of `count` codes, from `at` on, in 32 bits each.
template <bool kFull>
JIT_PASSES_VNNI_INLINE __m512i quarter(const uint8_t* codes, int64_t at, int64_t count) {
  if constexpr (kFull) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + at)));
  } else {
    const auto lanes = static_cast<__mmask16>(firstLanes(std::max<int64_t>(0, count - at)));
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, codes + at));
  }
}

template <bool kFull>
JIT_PASSES_VNNI_INLINE void addCodes64(
    const uint8_t* a, const uint8_t* b, int64_t count, const Add& add, const Rounding& rounding,
    uint8_t* out) {
  const __m512 m = _mm512_set1_ps(add.a_multiplier), k = _mm512_set1_ps(add.b_multiplier);
  __m512 v[4];
  for (int i = 0; i < 4; ++i) {
    const __m512 x = _mm512_cvtepi32_ps(quarter<kFull>(a, 16 * i, count));
    const __m512 y = _mm512_cvtepi32_ps(quarter<kFull>(b, 16 * i, count));
    v[i] = _mm512_fmadd_ps(x, m, _mm512_fmadd_ps(y, k, _mm512_set1_ps(add.offset)));
  }
  storeCodes<kFull>(v, count, rounding, add.table, out);
}

template <bool kFull>
JIT_PASSES_VNNI_INLINE void multiplyCodes64(
    const uint8_t* a, const uint8_t* b, int64_t count, const Multiply& multiply, const Rounding& rounding,
    uint8_t* out) {
  const __m512i za = _mm512_set1_epi32(multiply.a_zero_point), zb = _mm512_set1_epi32(multiply.b_zero_point);
  const __m512 m = _mm512_set1_ps(multiply.multiplier), offset = _mm512_set1_ps(multiply.offset);
  __m512 v[4];
  for (int i = 0; i < 4; ++i) {
    const __m512i x = _mm512_sub_epi32(quarter<kFull>(a, 16 * i, count), za);
    const __m512i y = _mm512_sub_epi32(quarter<kFull>(b, 16 * i, count), zb);
    // Differences fit 16 bits. The upper 16 bits of y are cleared, so the sign bits of x are multiplied by 0.
    const __m512i product = _mm512_madd_epi16(x, _mm512_and_si512(y, _mm512_set1_epi32(0xFFFF)));
    v[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(product), m, offset);
  }
  storeCodes<kFull>(v, count, rounding, multiply.table, out);
}

JIT_PASSES_VNNI void addRunVnni(
    const uint8_t* a, const uint8_t* b, int64_t count, const Add& add, uint8_t* out) {
  const Rounding rounding = roundingTo(add.range);
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    addCodes64<true>(a + i, b + i, 64, add, rounding, out + i);
  }
  if (i < count) {
    addCodes64<false>(a + i, b + i, count - i, add, rounding, out + i);
  }
}

JIT_PASSES_VNNI void multiplyRunVnni(
    const uint8_t* a, const uint8_t* b, int64_t count, const Multiply& multiply, uint8_t* out) {
  const Rounding rounding = roundingTo(multiply.range);
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    multiplyCodes64<true>(a + i, b + i, 64, multiply, rounding, out + i);
  }
  if (i < count) {
    multiplyCodes64<false>(a + i, b + i, count - i, multiply, rounding, out + i);
  }
}

JIT_PASSES_VNNI void lookUpRunVnni(const PixelRun& run, const uint8_t* table) {
  const Table entries = loadTable(table);
  const int64_t whole = run.count / 64 * 64;
  const auto lanes = static_cast<__mmask64>(firstLanes(run.count - whole));
  const uint8_t* in = run.in;
  uint8_t* out = run.out;
  for (int64_t x = 0; x < run.pixels; ++x, in += run.in_step, out += run.out_step) {
    for (int64_t i = 0; i < whole; i += 64) {
      _mm512_storeu_si512(out + i, lookUp(_mm512_loadu_si512(in + i), entries));
    }
    if (lanes) {
      const __m512i rest = lookUp(_mm512_maskz_loadu_epi8(lanes, in + whole), entries);
      _mm512_mask_storeu_epi8(out + whole, lanes, rest);
    }
  }
}

#else
constexpr auto addRunVnni = addPlain;
constexpr auto multiplyRunVnni = multiplyRun;
constexpr auto lookUpRunVnni = lookUpRun;
#endif

// The most codes of an operand at one time. An operand with one channel is copied so often.
constexpr int64_t kChunk = 1024;

const uint8_t* codesAt(
    const Image& operand, const Image& out, const uint8_t* pixel, int64_t first, int64_t count,
    uint8_t* copies) {
  if (operand.channels == out.channels) {
    return pixel + first;
  }
  std::memset(copies, *pixel, count);
  return copies;
}

bool denseRow(const Image& image, const Image& out) {
  return image.channels == out.channels && image.pixel == out.channels;
}

// Calls run(a, b, count, out) for all contiguous stretches. Operands have the rows of the output; strides of 0
// broadcast.
template <typename Run>
void overOperands(Image a, Image b, const Image& out, int64_t begin, int64_t end, const Run& run) {
  for (Image* operand : {&a, &b}) {
    operand->images = out.images, operand->depth = out.depth, operand->height = out.height;
  }
  uint8_t copies_a[kChunk], copies_b[kChunk];
  const bool dense = denseRow(a, out) && denseRow(b, out) && denseRow(out, out);
  const int64_t pixels = dense ? 1 : out.width, channels = dense ? out.width * out.channels : out.channels;
  for (int64_t index = begin; index < end; ++index) {
    const uint8_t *row_a = a.rowAt(index), *row_b = b.rowAt(index);
    uint8_t* row = out.rowAt(index);
    for (int64_t x = 0; x < pixels; ++x) {
      for (int64_t c = 0; c < channels; c += kChunk) {
        const int64_t count = std::min(kChunk, channels - c);
        run(codesAt(a, out, row_a + x * a.pixel, c, count, copies_a),
            codesAt(b, out, row_b + x * b.pixel, c, count, copies_b), count, row + x * out.pixel + c);
      }
    }
  }
}

} // namespace

void Add::run(const Image& a, const Image& b, const Image& out, int64_t begin, int64_t end) const {
  const auto run = form >= Form::Avx512 ? addRunVnni : addPlain;
  overOperands(a, b, out, begin, end, [&](const uint8_t* x, const uint8_t* y, int64_t count, uint8_t* to) {
    run(x, y, count, *this, to);
  });
}

void Multiply::run(const Image& a, const Image& b, const Image& out, int64_t begin, int64_t end) const {
  const auto run = form >= Form::Avx512 ? multiplyRunVnni : multiplyRun;
  overOperands(a, b, out, begin, end, [&](const uint8_t* x, const uint8_t* y, int64_t count, uint8_t* to) {
    run(x, y, count, *this, to);
  });
}

void LookUp::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const auto run = form >= Form::Avx512 ? lookUpRunVnni : lookUpRun;
  const bool dense = in.pixel == out.channels && out.pixel == out.channels;
  PixelRun row{
      nullptr,
      nullptr,
      in.pixel,
      out.pixel,
      dense ? 1 : out.width,
      dense ? out.width * out.channels : out.channels};
  for (int64_t index = begin; index < end; ++index) {
    row.in = in.rowAt(index), row.out = out.rowAt(index);
    if (table) {
      run(row, table);
    } else if (row.in != row.out) {
      for (int64_t x = 0; x < row.pixels; ++x) {
        std::memcpy(row.out + x * row.out_step, row.in + x * row.in_step, row.count);
      }
    }
  }
}

void Prelu::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  for (int64_t index = begin; index < end; ++index) {
    for (int64_t i = 0; i < out.width; ++i) {
      preluPixel(
          in.rowAt(index) + i * in.pixel, *this, below, out.channels, out.rowAt(index) + i * out.pixel);
    }
  }
}

} // namespace jit_passes::x86
