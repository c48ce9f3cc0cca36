// The edges of a region: float tensors to codes with channels innermost, and back.
//
// A row of the tensor is divided into tiles of pixels and channels, so that reads along the width, for NCHW, and
// writes along the channels both stay within a few cache lines. The form for AVX-512 has tiles of 16 pixels by 16
// channels: the codes of four channels are 32 bits, and 4 x 4 of these are transposed in registers.
#include <algorithm>

#include "plain.h"
#include "vnni.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kTile = 64;

JIT_PASSES_VECTORIZED void quantizeRun(const float* in, int64_t count, const Quantize& q, uint8_t* out) {
  const float inverse = q.inverse_scale, offset = q.offset;
  const ToCode code(q.range);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = code(__builtin_fmaf(in[i], inverse, offset));
  }
}

JIT_PASSES_VECTORIZED void dequantizeRun(
    const uint8_t* in, int64_t count, float scale, int32_t zero_point, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(in[i] - zero_point) * scale;
  }
}

#ifdef JIT_PASSES_HAS_VNNI

// The distance of prefetches in floats. An input that the caller has just made is in no cache of this core. For
// eight images this halves the time.
constexpr int64_t kFetched = 512;

JIT_PASSES_VNNI_INLINE __m512 scaled(__m512 x, const Quantize& q) {
  return _mm512_fmadd_ps(x, _mm512_set1_ps(q.inverse_scale), _mm512_set1_ps(q.offset));
}

JIT_PASSES_VNNI void quantizeRunVnni(const float* in, int64_t count, const Quantize& q, uint8_t* out) {
  const Rounding rounding = roundingTo(q.range);
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    for (int64_t line = 0; line < 64; line += 16) {
      _mm_prefetch(reinterpret_cast<const char*>(in + i + line + kFetched), _MM_HINT_T0);
    }
    __m512 v[4];
    for (int64_t part = 0; part < 4; ++part) {
      v[part] = aboveLow(scaled(_mm512_loadu_ps(in + i + 16 * part), q), q.range);
    }
    _mm512_storeu_si512(out + i, roundToCodes(v[0], v[1], v[2], v[3], rounding));
  }
  for (; i < count; i += 16) {
    const auto lanes = static_cast<__mmask16>(firstLanes(count - i));
    const __m512i codes = codesOf(scaled(_mm512_maskz_loadu_ps(lanes, in + i), q), q.range);
    _mm_mask_storeu_epi8(out + i, lanes, _mm512_cvtepi32_epi8(codes));
  }
}

JIT_PASSES_VNNI void dequantizeRunVnni(
    const uint8_t* in, int64_t count, float scale, int32_t zero_point, float* out) {
  const __m512i zero = _mm512_set1_epi32(zero_point);
  const __m512 step = _mm512_set1_ps(scale);
  for (int64_t i = 0; i < count; i += 16) {
    const auto lanes = static_cast<__mmask16>(firstLanes(count - i));
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, in + i));
    const __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(codes, zero)), step);
    _mm512_mask_storeu_ps(out + i, lanes, x);
  }
}

// The positions of the codes of 16 dense pixels with up to four channels, one pixel in 32 bits, and the inverse.
struct FewChannels {
  constexpr explicit FewChannels(int channels) {
    for (int i = 0; i < 16 * channels; ++i) {
      packed[i] = static_cast<uint8_t>(i / channels * 4 + i % channels);
      spread[packed[i]] = static_cast<uint8_t>(i);
    }
  }
  alignas(64) uint8_t packed[64] = {}, spread[64] = {};
};
constexpr FewChannels kFewChannels[] = {
    FewChannels(0), FewChannels(1), FewChannels(2), FewChannels(3), FewChannels(4)};

// Quantizes up to 16 pixels and 16 channels of a row whose pixels are neighbours, with `plane` floats from channel
// to channel.
JIT_PASSES_VNNI void quantizeTile(
    const float* in, int64_t plane, int64_t pixels, int64_t channels, const Quantize& q, uint8_t* out,
    int64_t step) {
  const auto columns = static_cast<__mmask16>(firstLanes(pixels));
  __m512i t[4];
  for (int64_t i = 0; i < 4; ++i) {
    t[i] = _mm512_setzero_si512();
    for (int64_t c = 4 * i; c < std::min(4 * i + 4, channels); ++c) {
      _mm_prefetch(reinterpret_cast<const char*>(in + c * plane + kFetched), _MM_HINT_T0);
      const __m512i codes = codesOf(scaled(_mm512_maskz_loadu_ps(columns, in + c * plane), q), q.range);
      t[i] =
          _mm512_or_si512(t[i], _mm512_sllv_epi32(codes, _mm512_set1_epi32(static_cast<int>(8 * (c % 4)))));
    }
  }
  if (channels <= 4 && step == channels) {
    const __m512i codes = _mm512_permutexvar_epi8(_mm512_load_si512(kFewChannels[channels].packed), t[0]);
    _mm512_mask_storeu_epi8(out, firstLanes(pixels * channels), codes);
    return;
  }
  transposeDwords(t);
  const auto lanes = static_cast<__mmask16>(firstLanes(channels));
  alignas(64) uint8_t codes[16 * 16];
  for (int64_t i = 0; i < 4; ++i) {
    _mm512_store_si512(codes + 64 * i, t[i]);
  }
  for (int64_t p = 0; p < pixels; ++p) {
    const __m128i pixel = _mm_load_si128(reinterpret_cast<const __m128i*>(codes + p % 4 * 64 + p / 4 * 16));
    if (channels == 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + p * step), pixel);
    } else {
      _mm_mask_storeu_epi8(out + p * step, lanes, pixel);
    }
  }
}

JIT_PASSES_VNNI void dequantizeTile(
    const uint8_t* in, int64_t step, int64_t pixels, int64_t channels, float scale, int32_t zero_point,
    float* out, int64_t plane) {
  const auto lanes = static_cast<__mmask16>(firstLanes(channels)),
             columns = static_cast<__mmask16>(firstLanes(pixels));
  __m512i t[4];
  if (channels <= 4 && step == channels) {
    const __m512i codes = _mm512_maskz_loadu_epi8(firstLanes(pixels * channels), in);
    t[0] = _mm512_permutexvar_epi8(_mm512_load_si512(kFewChannels[channels].spread), codes);
  } else {
    alignas(64) uint8_t codes[16 * 16];
    for (int64_t p = 0; p < pixels; ++p) {
      _mm_store_si128(
          reinterpret_cast<__m128i*>(codes + p % 4 * 64 + p / 4 * 16),
          _mm_maskz_loadu_epi8(lanes, in + p * step));
    }
    for (int64_t i = 0; i < 4; ++i) {
      t[i] = _mm512_load_si512(codes + 64 * i);
    }
    transposeDwords(t);
  }
  for (int64_t c = 0; c < channels; ++c) {
    const __m512i shifted = _mm512_srlv_epi32(t[c / 4], _mm512_set1_epi32(static_cast<int>(8 * (c % 4))));
    const __m512i code = _mm512_and_si512(shifted, _mm512_set1_epi32(255));
    const __m512 x = _mm512_cvtepi32_ps(_mm512_sub_epi32(code, _mm512_set1_epi32(zero_point)));
    _mm512_mask_storeu_ps(out + c * plane, columns, _mm512_mul_ps(x, _mm512_set1_ps(scale)));
  }
}

#else
constexpr auto quantizeRunVnni = quantizeRun;
constexpr auto dequantizeRunVnni = dequantizeRun;
#endif

void quantizePlane(
    const float* in, const Strides& strides, const Image& out, const Quantize& q, uint8_t* to) {
#ifdef JIT_PASSES_HAS_VNNI
  if (q.form >= Form::Avx512) {
    for (int64_t x = 0; x < out.width; x += 16) {
      for (int64_t c = 0; c < out.channels; c += 16) {
        quantizeTile(
            in + c * strides.channel + x, strides.channel, std::min<int64_t>(16, out.width - x),
            std::min<int64_t>(16, out.channels - c), q, to + x * out.pixel + c, out.pixel);
      }
    }
    return;
  }
#endif
  uint8_t column[kTile];
  for (int64_t x = 0; x < out.width; x += kTile) {
    const int64_t count = std::min(kTile, out.width - x);
    for (int64_t c = 0; c < out.channels; ++c) {
      quantizeRun(in + c * strides.channel + x, count, q, column);
      for (int64_t i = 0; i < count; ++i) {
        to[(x + i) * out.pixel + c] = column[i];
      }
    }
  }
}

void dequantizePlane(
    const uint8_t* from, const Image& in, const Dequantize& d, float* to, const Strides& strides) {
#ifdef JIT_PASSES_HAS_VNNI
  if (d.form >= Form::Avx512) {
    for (int64_t x = 0; x < in.width; x += 16) {
      for (int64_t c = 0; c < in.channels; c += 16) {
        dequantizeTile(
            from + x * in.pixel + c, in.pixel, std::min<int64_t>(16, in.width - x),
            std::min<int64_t>(16, in.channels - c), d.scale, d.zero_point, to + c * strides.channel + x,
            strides.channel);
      }
    }
    return;
  }
#endif
  uint8_t column[kTile];
  for (int64_t x = 0; x < in.width; x += kTile) {
    const int64_t count = std::min(kTile, in.width - x);
    for (int64_t c = 0; c < in.channels; ++c) {
      for (int64_t i = 0; i < count; ++i) {
        column[i] = from[(x + i) * in.pixel + c];
      }
      dequantizeRun(column, count, d.scale, d.zero_point, to + c * strides.channel + x);
    }
  }
}

int64_t rowOffset(const Strides& strides, const Image& image, int64_t index) {
  const int64_t y = index % image.height, z = index / image.height % image.depth;
  return index / image.height / image.depth * strides.image + z * strides.depth + y * strides.height;
}

// Whether a row is contiguous on both sides.
bool oneRun(const Strides& strides, const Image& image) {
  return image.pixel == image.channels && ((strides.channel == 1 && strides.width == image.channels) ||
                                           (image.channels == 1 && strides.width == 1));
}

} // namespace

void Quantize::run(
    const float* in, const Strides& strides, const Image& out, int64_t begin, int64_t end) const {
  const auto quantize = form >= Form::Avx512 ? quantizeRunVnni : quantizeRun;
  for (int64_t index = begin; index < end; ++index) {
    const float* from = in + rowOffset(strides, out, index);
    uint8_t* to = out.rowAt(index);
    if (oneRun(strides, out)) {
      quantize(from, out.width * out.channels, *this, to);
    } else if (strides.channel == 1) {
      for (int64_t x = 0; x < out.width; ++x) {
        quantize(from + x * strides.width, out.channels, *this, to + x * out.pixel);
      }
    } else if (strides.width == 1) {
      quantizePlane(from, strides, out, *this, to);
    } else {
      for (int64_t x = 0; x < out.width; ++x) {
        for (int64_t c = 0; c < out.channels; ++c) {
          quantizeRun(from + x * strides.width + c * strides.channel, 1, *this, to + x * out.pixel + c);
        }
      }
    }
  }
}

void Dequantize::run(const Image& in, float* out, const Strides& strides, int64_t begin, int64_t end) const {
  const auto dequantize = form >= Form::Avx512 ? dequantizeRunVnni : dequantizeRun;
  for (int64_t index = begin; index < end; ++index) {
    const uint8_t* from = in.rowAt(index);
    float* to = out + rowOffset(strides, in, index);
    if (oneRun(strides, in)) {
      dequantize(from, in.width * in.channels, scale, zero_point, to);
    } else if (strides.channel == 1) {
      for (int64_t x = 0; x < in.width; ++x) {
        dequantize(from + x * in.pixel, in.channels, scale, zero_point, to + x * strides.width);
      }
    } else if (strides.width == 1) {
      dequantizePlane(from, in, *this, to, strides);
    } else {
      for (int64_t x = 0; x < in.width; ++x) {
        for (int64_t c = 0; c < in.channels; ++c) {
          dequantizeRun(
              from + x * in.pixel + c, 1, scale, zero_point, to + x * strides.width + c * strides.channel);
        }
      }
    }
  }
}

} // namespace jit_passes::x86
