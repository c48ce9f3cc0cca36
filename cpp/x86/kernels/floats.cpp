// Sums, products, layer norm and softmax of float32.
#include "x86/floats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "exponential.h"
#include "plain.h"
#include "vnni.h"

namespace jit_passes::x86 {
namespace {

// Other functions than the sum's own, which no compiler takes into it: the product is rounded before it is added.
JIT_PASSES_VECTORIZED void floatsOfCodes(
    const uint8_t* in, int64_t count, float scale, int32_t zero_point, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(in[i] - zero_point) * scale;
  }
}

JIT_PASSES_VECTORIZED void addFloats(
    const float* a, const float* b, int64_t count, float a_factor, float b_factor, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = __builtin_fmaf(b[i], b_factor, a[i] * a_factor);
  }
}

JIT_PASSES_VECTORIZED void multiplyFloats(const float* a, const float* b, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = a[i] * b[i];
  }
}

// At most so many floats of an operand are taken at once.
constexpr int64_t kFloats = 1024;

// Those from channel `first` on; where there is one channel, as many copies of it.
const float* floatsAt(
    const FloatOperand& operand, const Image& image, int64_t channels, const uint8_t* pixel, int64_t first,
    int64_t count, float* copies) {
  const bool all = image.channels == channels;
  if (operand.is_float) {
    const auto* x = reinterpret_cast<const float*>(pixel);
    if (!all) {
      std::fill_n(copies, count, *x);
    }
    return all ? x + first : copies;
  }
  floatsOfCodes(pixel + (all ? first : 0), all ? count : 1, operand.scale, operand.zero_point, copies);
  if (!all) {
    std::fill_n(copies + 1, count - 1, *copies);
  }
  return copies;
}

// The part that all forms have in common: from sums to results.
inline __attribute__((always_inline)) float normalFactor(float squares, int64_t count, double eps) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(squares) / static_cast<double>(count) + eps));
}

constexpr int64_t kSumParts = 64;

inline __attribute__((always_inline)) float sumOfParts(const float* parts) {
  float sums[16];
  for (int i = 0; i < 16; ++i) {
    sums[i] = (parts[i] + parts[i + 16]) + (parts[i + 32] + parts[i + 48]);
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      sums[i] += sums[i + half];
    }
  }
  return sums[0];
}

// add(part, x) for each number and the part of the sum that it belongs to: whole blocks of parts are vectors.
template <typename Add>
inline __attribute__((always_inline)) void addToParts(
    const float* in, int64_t count, float* parts, const Add& add) {
  int64_t i = 0;
  for (; i + kSumParts <= count; i += kSumParts) {
    for (int64_t j = 0; j < kSumParts; ++j) {
      parts[j] = add(parts[j], in[i + j]);
    }
  }
  for (int64_t j = 0; i + j < count; ++j) {
    parts[j] = add(parts[j], in[i + j]);
  }
}

// Results go through a block, so that each loop is simple enough for vectors. Either of both may be null.
inline __attribute__((always_inline)) void storeBlock(
    const float* y, int64_t count, const ToCodes& to, float* floats, uint8_t* codes) {
  const float inverse = to.inverse_scale, offset = to.offset;
  const ToCode code(to.range);
  for (int64_t j = 0; floats && j < count; ++j) {
    floats[j] = y[j];
  }
  for (int64_t j = 0; codes && j < count; ++j) {
    codes[j] = code(__builtin_fmaf(y[j], inverse, offset));
  }
}

JIT_PASSES_VECTORIZED void normalizePlain(
    const float* in, int64_t count, const LayerNormFloats& norm, float* floats, uint8_t* codes) {
  float parts[kSumParts] = {};
  if (norm.centred) {
    addToParts(in, count, parts, [](float part, float x) { return part + x; });
  }
  const float mean = sumOfParts(parts) / static_cast<float>(count);
  std::fill_n(parts, kSumParts, 0.0F);
  addToParts(in, count, parts, [&](float part, float x) { return __builtin_fmaf(x - mean, x - mean, part); });
  const float factor = normalFactor(sumOfParts(parts), count, norm.eps);
  const float *const weight = norm.weight, *const bias = norm.bias;
  float y[kSumParts];
  for (int64_t i = 0; i < count; i += kSumParts) {
    const int64_t some = count - i < kSumParts ? count - i : kSumParts;
    for (int64_t j = 0; j < some; ++j) {
      y[j] = __builtin_fmaf((in[i + j] - mean) * factor, weight[i + j], bias[i + j]);
    }
    storeBlock(y, some, norm.codes, floats ? floats + i : nullptr, codes ? codes + i : nullptr);
  }
}

// All numbers of a row are taken relative to this. Relative to 0, minus infinities alone have the sum 0.
float levelOf(float largest, bool hides) {
  return hides && largest == -std::numeric_limits<float>::infinity() ? 0 : largest;
}

float inverseOf(float sum) { return sum == 0 ? 0 : 1 / sum; }

JIT_PASSES_VECTORIZED void softmaxFloats(
    const float* in, int64_t count, const SoftmaxFloats& softmax, float* floats, uint8_t* codes) {
  float parts[kSumParts];
  std::fill_n(parts, kSumParts, -std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < count; i += kSumParts) {
    for (int64_t j = 0; j < std::min(kSumParts, count - i); ++j) {
      parts[j] = in[i + j] > parts[j] ? in[i + j] : parts[j];
    }
  }
  const float level = levelOf(*std::max_element(parts, parts + kSumParts), softmax.hides);
  std::fill_n(parts, kSumParts, 0.0F);
  addToParts(in, count, parts, [&](float part, float x) {
    const auto [value, power] = exponentialOf(x - level);
    return __builtin_fmaf(value, power, part);
  });
  const float factor = inverseOf(sumOfParts(parts));
  float y[kSumParts];
  for (int64_t i = 0; i < count; i += kSumParts) {
    const int64_t some = count - i < kSumParts ? count - i : kSumParts;
    for (int64_t j = 0; j < some; ++j) {
      const auto [value, power] = exponentialOf(in[i + j] - level);
      y[j] = value * power * factor;
    }
    storeBlock(y, some, softmax.codes, floats ? floats + i : nullptr, codes ? codes + i : nullptr);
  }
}

#ifdef JIT_PASSES_HAS_VNNI

// 16 of `count` floats, from `at` on; zeros where there are none.
JIT_PASSES_VNNI_INLINE __mmask16 lanesAt(int64_t at, int64_t count) {
  return static_cast<__mmask16>(at < count ? firstLanes(count - at) : 0);
}

JIT_PASSES_VNNI_INLINE float sumOfFour(const __m512 (&sums)[4]) {
  alignas(64) float parts[kSumParts];
  for (int i = 0; i < 4; ++i) {
    _mm512_store_ps(parts + 16 * i, sums[i]);
  }
  return sumOfParts(parts);
}

JIT_PASSES_VNNI_INLINE void storeCodes(__m512 y, const ToCodes& to, uint8_t* out, __mmask16 lanes) {
  const __m512 v = _mm512_fmadd_ps(y, _mm512_set1_ps(to.inverse_scale), _mm512_set1_ps(to.offset));
  _mm_mask_storeu_epi8(out, lanes, _mm512_cvtepi32_epi8(codesOf(v, to.range)));
}

JIT_PASSES_VNNI void normalizeVnni(
    const float* in, int64_t count, const LayerNormFloats& norm, float* floats, uint8_t* codes) {
  const int64_t whole = count / kSumParts * kSumParts;
  __m512 sums[4] = {};
  for (int64_t i = 0; norm.centred && i < whole; i += kSumParts) {
    for (int j = 0; j < 4; ++j) {
      sums[j] = _mm512_add_ps(sums[j], _mm512_loadu_ps(in + i + 16 * j));
    }
  }
  for (int j = 0; norm.centred && j < 4 && whole < count; ++j) {
    const int64_t at = whole + 16 * j;
    sums[j] = _mm512_add_ps(sums[j], _mm512_maskz_loadu_ps(lanesAt(at, count), in + at));
  }
  const float mean = sumOfFour(sums) / static_cast<float>(count);
  const __m512 means = _mm512_set1_ps(mean);
  std::fill_n(sums, 4, _mm512_setzero_ps());
  for (int64_t i = 0; i < whole; i += kSumParts) {
    for (int j = 0; j < 4; ++j) {
      const __m512 d = _mm512_sub_ps(_mm512_loadu_ps(in + i + 16 * j), means);
      sums[j] = _mm512_fmadd_ps(d, d, sums[j]);
    }
  }
  for (int j = 0; j < 4 && whole < count; ++j) {
    const __mmask16 lanes = lanesAt(whole + 16 * j, count);
    const __m512 d = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, in + whole + 16 * j), means);
    sums[j] = _mm512_mask3_fmadd_ps(d, d, sums[j], lanes);
  }
  const __m512 factor = _mm512_set1_ps(normalFactor(sumOfFour(sums), count, norm.eps));
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 lanes = lanesAt(i, count);
    const __m512 d = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, in + i), means);
    const __m512 y = _mm512_fmadd_ps(
        _mm512_mul_ps(d, factor), _mm512_maskz_loadu_ps(lanes, norm.weight + i),
        _mm512_maskz_loadu_ps(lanes, norm.bias + i));
    if (floats) {
      _mm512_mask_storeu_ps(floats + i, lanes, y);
    }
    if (codes) {
      storeCodes(y, norm.codes, codes + i, lanes);
    }
  }
}

// The same as a value and a power of two each.
struct FloatExponentials {
  __m512 value, power;
};

JIT_PASSES_VNNI_INLINE FloatExponentials exponentialsOf(__m512 d) {
  const __m512 least = _mm512_set1_ps(kLeast), shift = _mm512_set1_ps(kShift);
  const __m512 x = _mm512_max_ps(least, d); // a NaN stays
  const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(kLog2E), shift);
  const __m512 n = _mm512_sub_ps(shifted, shift);
  const __m512 r =
      _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2Low), _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2High), x));
  __m512 value = _mm512_set1_ps(kTaylor[0]);
  for (size_t i = 1; i < std::size(kTaylor); ++i) {
    value = _mm512_fmadd_ps(value, r, _mm512_set1_ps(kTaylor[i]));
  }
  const __m512i bias = _mm512_set1_epi32(127 - std::bit_cast<int32_t>(kShift));
  const __m512i exponent = _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(shifted), bias), 23);
  return {
      value, _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(d, least, _CMP_NLT_UQ), _mm512_castsi512_ps(exponent))};
}

JIT_PASSES_VNNI void softmaxFloatsVnni(
    const float* in, int64_t count, const SoftmaxFloats& softmax, float* floats, uint8_t* codes) {
  __m512 sums[4];
  std::fill_n(sums, 4, _mm512_set1_ps(-std::numeric_limits<float>::infinity()));
  for (int64_t i = 0; i < count; i += kSumParts) {
    for (int j = 0; j < 4; ++j) {
      const __mmask16 lanes = lanesAt(i + 16 * j, count);
      sums[j] = _mm512_max_ps(_mm512_mask_loadu_ps(sums[j], lanes, in + i + 16 * j), sums[j]);
    }
  }
  const __m512 most = _mm512_max_ps(_mm512_max_ps(sums[0], sums[1]), _mm512_max_ps(sums[2], sums[3]));
  const __m512 level = _mm512_set1_ps(levelOf(_mm512_reduce_max_ps(most), softmax.hides));
  const auto at = [&](int64_t i, __mmask16 lanes) JIT_PASSES_VNNI {
    return exponentialsOf(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, in + i), level));
  };
  std::fill_n(sums, 4, _mm512_setzero_ps());
  for (int64_t i = 0; i < count; i += kSumParts) {
    for (int j = 0; j < 4; ++j) {
      const __mmask16 lanes = lanesAt(i + 16 * j, count);
      const auto [value, power] = at(i + 16 * j, lanes);
      sums[j] = _mm512_mask3_fmadd_ps(value, power, sums[j], lanes);
      if (floats) {
        _mm512_mask_storeu_ps(floats + i + 16 * j, lanes, _mm512_mul_ps(value, power));
      }
    }
  }
  const __m512 factor = _mm512_set1_ps(inverseOf(sumOfFour(sums)));
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 lanes = lanesAt(i, count);
    __m512 y;
    if (floats) {
      y = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, floats + i), factor);
      _mm512_mask_storeu_ps(floats + i, lanes, y);
    } else {
      const auto [value, power] = at(i, lanes);
      y = _mm512_mul_ps(_mm512_mul_ps(value, power), factor);
    }
    if (codes) {
      storeCodes(y, softmax.codes, codes + i, lanes);
    }
  }
}

#else
constexpr auto normalizeVnni = normalizePlain;
constexpr auto softmaxFloatsVnni = softmaxFloats;
#endif

// combine(a, b, count, out) for all that lies together.
template <typename Combine>
void overFloats(
    const FloatOperand& a, const FloatOperand& b, Image left, Image right, const Image& out, int64_t begin,
    int64_t end, const Combine& combine) {
  const auto isDense = [&](const Image& image, bool is_float) {
    return image.channels == out.channels &&
           image.pixel == out.channels * int64_t(is_float ? sizeof(float) : 1);
  };
  for (Image* operand : {&left, &right}) { // strides of 0 broadcast
    operand->images = out.images, operand->depth = out.depth, operand->height = out.height;
  }
  const bool dense = isDense(left, a.is_float) && isDense(right, b.is_float) && isDense(out, true);
  const int64_t pixels = dense ? 1 : out.width, channels = dense ? out.width * out.channels : out.channels;
  if (dense) {
    left.channels = right.channels = channels;
  }
  float of_a[kFloats], of_b[kFloats];
  for (int64_t index = begin; index < end; ++index) {
    const uint8_t *row_a = left.rowAt(index), *row_b = right.rowAt(index);
    for (int64_t i = 0; i < pixels; ++i) {
      auto* to = reinterpret_cast<float*>(out.rowAt(index) + i * out.pixel);
      for (int64_t c = 0; c < channels; c += kFloats) {
        const int64_t count = std::min(kFloats, channels - c);
        combine(
            floatsAt(a, left, channels, row_a + i * left.pixel, c, count, of_a),
            floatsAt(b, right, channels, row_b + i * right.pixel, c, count, of_b), count, to + c);
      }
    }
  }
}

// run(row, floats, codes) for each pixel, of which one of both may be missing.
template <typename Run>
void overRows(
    const Image& in, const Image* floats, const Image* codes, int64_t begin, int64_t end, const Run& run) {
  for (int64_t index = begin; index < end; ++index) {
    for (int64_t x = 0; x < in.width; ++x) {
      const auto* row = reinterpret_cast<const float*>(in.rowAt(index) + x * in.pixel);
      auto* to = floats ? reinterpret_cast<float*>(floats->rowAt(index) + x * floats->pixel) : nullptr;
      run(row, to, codes ? codes->rowAt(index) + x * codes->pixel : nullptr);
    }
  }
}

} // namespace

void AddFloats::run(const Image& x, const Image& y, const Image& out, int64_t begin, int64_t end) const {
  overFloats(a, b, x, y, out, begin, end, [&](const float* l, const float* r, int64_t count, float* to) {
    addFloats(l, r, count, a_factor, b_factor, to);
  });
}

void MultiplyFloats::run(const Image& x, const Image& y, const Image& out, int64_t begin, int64_t end) const {
  overFloats(a, b, x, y, out, begin, end, multiplyFloats);
}

void SoftmaxFloats::run(
    const Image& in, const Image* floats, const Image* to, int64_t begin, int64_t end) const {
  const auto run = form == Form::Avx512 ? softmaxFloatsVnni : softmaxFloats;
  overRows(in, floats, to, begin, end, [&](const float* row, float* y, uint8_t* q) {
    run(row, in.channels, *this, y, q);
  });
}

void LayerNormFloats::run(
    const Image& in, const Image* floats, const Image* to, int64_t begin, int64_t end) const {
  const auto run = form == Form::Avx512 ? normalizeVnni : normalizePlain;
  overRows(in, floats, to, begin, end, [&](const float* row, float* y, uint8_t* q) {
    run(row, in.channels, *this, y, q);
  });
}

} // namespace jit_passes::x86
