// Linear layers and convolutions whose input is quantized at run time: ranges, rows of codes, and float32 from sums.
#include "dynamic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "plain.h"
#include "tiles_to_floats.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kExtentParts = 64;
constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

// Number by number, since numbers that are not finite are rare.
Extent extentOfFinite(const float* x, int64_t count) {
  Extent found{0, 0, false};
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(x[i])) {
      found.low = std::min(found.low, x[i]), found.high = std::max(found.high, x[i]);
    }
  }
  return found;
}

// Comparisons ignore a NaN, so the bits of the numbers are tested too.
JIT_PASSES_VECTORIZED Extent extentOfPlain(const float* x, int64_t count) {
  float low[kExtentParts] = {}, high[kExtentParts] = {};
  int32_t size[kExtentParts] = {};
  for (int64_t first = 0; first < count; first += kExtentParts) {
    const int64_t last = count - first < kExtentParts ? count - first : kExtentParts;
    for (int64_t i = 0; i < last; ++i) {
      const float v = x[first + i];
      const int32_t bits = std::bit_cast<int32_t>(v) & INT32_MAX;
      low[i] = v < low[i] ? v : low[i];
      high[i] = v > high[i] ? v : high[i];
      size[i] = bits > size[i] ? bits : size[i];
    }
  }
  for (int64_t half = kExtentParts / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) {
      low[i] = low[i + half] < low[i] ? low[i + half] : low[i];
      high[i] = high[i + half] > high[i] ? high[i + half] : high[i];
      size[i] = size[i + half] > size[i] ? size[i + half] : size[i];
    }
  }
  const bool finite = size[0] < std::bit_cast<int32_t>(std::numeric_limits<float>::infinity());
  return finite ? Extent{low[0], high[0]} : extentOfFinite(x, count);
}

#ifdef JIT_PASSES_HAS_VNNI

// The order of operands matters: a minimum is the second operand if the first is a NaN.
JIT_PASSES_VNNI Extent extentOfVnni(const float* x, int64_t count) {
  __m512 low[4] = {}, high[4] = {};
  __m512i size[4] = {};
  const __m512i no_sign = _mm512_set1_epi32(INT32_MAX);
  const auto take = [&](__m512 v, int i) JIT_PASSES_VNNI {
    low[i] = _mm512_min_ps(v, low[i]), high[i] = _mm512_max_ps(v, high[i]);
    size[i] = _mm512_max_epi32(size[i], _mm512_and_si512(_mm512_castps_si512(v), no_sign));
  };
  int64_t at = 0;
  for (; at + kExtentParts <= count; at += kExtentParts) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      take(_mm512_loadu_ps(x + at + i * kLanes), i);
    }
  }
  for (; at < count; at += kLanes) {
    const auto lanes = static_cast<__mmask16>(firstLanes(std::min<int64_t>(count - at, kLanes)));
    take(_mm512_maskz_loadu_ps(lanes, x + at), 0);
  }
#pragma GCC unroll 3
  for (int i = 1; i < 4; ++i) {
    low[0] = _mm512_min_ps(low[0], low[i]), high[0] = _mm512_max_ps(high[0], high[i]);
    size[0] = _mm512_max_epi32(size[0], size[i]);
  }
  const bool finite =
      _mm512_reduce_max_epi32(size[0]) < std::bit_cast<int32_t>(std::numeric_limits<float>::infinity());
  return finite ? Extent{_mm512_reduce_min_ps(low[0]), _mm512_reduce_max_ps(high[0])}
                : extentOfFinite(x, count);
}

#else
constexpr auto extentOfVnni = extentOfPlain;
#endif

Extent extentOf(const float* x, int64_t count, Form form) {
  return form >= Form::Avx512 ? extentOfVnni(x, count) : extentOfPlain(x, count);
}

Extent both(const Extent& a, const Extent& b) {
  return {std::min(a.low, b.low), std::max(a.high, b.high), a.finite && b.finite};
}

const uint8_t* rowOf(const Image& image, int64_t row) {
  return image.rows() == 1 ? image.data + row * image.pixel
                           : image.rowAt(row / image.width) + row % image.width * image.pixel;
}

// The number of rows that are neighbours in memory, to be taken at one time.
int64_t rowsAtOnce(const Image& image) {
  const bool dense = image.rows() == 1 && image.pixel == image.channels * int64_t(sizeof(float));
  return dense ? image.width : 1;
}

// In double, with a scale of at least 6.1e-5, for which the ends move out in proportion. Equals chooseFbgemm in
// cpp/ops/dynamic.cpp.
RowGrid fbgemmGrid(float low, float high) {
  constexpr float kSmallestStep = 6.1e-5F;
  constexpr double kTop = 255, kWhole = kSmallestStep * 255.0F;
  const double least = low, most = high;
  double scale = (most - least) / kTop;
  scale = std::isinf(1 / static_cast<float>(scale)) ? 0.1 : scale;
  const bool small = scale < kSmallestStep;
  const float amplifier = kSmallestStep / static_cast<float>(scale);
  scale = small ? kSmallestStep : scale;
  const auto moved = [&](double end, double other, double alone) {
    const double out = other == 0 ? alone : static_cast<double>(static_cast<float>(end) * amplifier);
    return small && end != 0 ? out : end;
  };
  const double below = moved(least, most, -kWhole) / scale, above = moved(most, least, kWhole) / scale;
  const bool from_bottom = -std::abs(below) < kTop - std::abs(above);
  const double exact = from_bottom ? -below : kTop - above;
  const double zero_point = __builtin_rint(std::clamp(exact, 0.0, kTop));
  return {static_cast<float>(scale), static_cast<int32_t>(zero_point)};
}

} // namespace

RowGrid gridOf(const Extent& extent, RangeForm form) {
  constexpr float kSteps = 255;
  const auto usable = [](float scale) {
    return scale > 0 ? std::max(scale, 0x1p-60F) : std::numeric_limits<float>::epsilon();
  };
  const float low = extent.low, high = extent.high;
  if (form == RangeForm::Fbgemm) {
    return fbgemmGrid(low, high);
  }
  if (form == RangeForm::Symmetric) {
    const double span = 2 * static_cast<double>(std::max(-low, high));
    return {usable(static_cast<float>(span / kSteps)), 128};
  }
  const float span = high - low; // may be infinite for finite numbers
  const float found =
      std::isinf(span) ? static_cast<float>((static_cast<double>(high) - low) / kSteps) : span / kSteps;
  const float scale = usable(found);
  const float zero_point = -__builtin_rintf(low / scale);
  return {scale, static_cast<int32_t>(std::clamp(zero_point, 0.0F, kSteps))};
}

RowGrid withoutNumbers(const RowGrid& grid) { return {kNoNumber, grid.zero_point}; }

void Measure::run(const Image& in, Extent* parts, int64_t begin, int64_t end) const {
  const int64_t rows = in.rows() * in.width, count = items(in), most = rowsAtOnce(in);
  for (int64_t part = begin; part < end; ++part) {
    Extent found;
    const int64_t last = rows * (part + 1) / count;
    for (int64_t row = rows * part / count, some; row < last; row += some) {
      some = std::min(most, last - row);
      const auto* x = reinterpret_cast<const float*>(rowOf(in, row));
      found = both(found, extentOf(x, some * in.channels, form));
    }
    parts[part] = found;
  }
}

Extent extentOf(const Extent* parts) {
  return std::accumulate(parts, parts + Measure::kParts, Extent{}, both);
}

void QuantizeRows::run(const Image& in, RowGrid* grids, uint8_t* codes, int64_t begin, int64_t end) const {
  for (int64_t row = begin; row < end; ++row) {
    const Extent found = extentOf(reinterpret_cast<const float*>(rowOf(in, row)), in.channels, form);
    const RowGrid grid = gridOf(found, range);
    grids[row] = found.finite ? grid : withoutNumbers(grid);
    quantize(in, row, 1, grid, codes);
  }
}

void QuantizeRows::run(
    const Image& in, const Extent* parts, bool* infinite, uint8_t* codes, int64_t begin, int64_t end) const {
  const Extent all = extentOf(parts);
  const RowGrid grid = gridOf(all, range);
  const int64_t most = rowsAtOnce(in);
  for (int64_t row = begin, some; row < end; row += some) {
    some = std::min(most, end - row);
    quantize(in, row, some, grid, codes);
  }
  for (int64_t row = begin; !all.finite && row < end; ++row) {
    infinite[row] = !extentOf(reinterpret_cast<const float*>(rowOf(in, row)), in.channels, form).finite;
  }
}

void QuantizeRows::quantize(
    const Image& in, int64_t row, int64_t count, const RowGrid& grid, uint8_t* codes) const {
  const int64_t numbers = count * in.channels;
  Image to;
  to.data = codes + row * in.channels;
  to.channels = to.pixel = numbers;
  const auto* x = reinterpret_cast<const float*>(rowOf(in, row));
  quantizeTo(grid, steps, form).run(x, {0, 0, 0, numbers, 1}, to, 0, 1);
}

void findInfinite(
    const float* in, const Strides& strides, const Image& sizes, bool* infinite, int64_t begin, int64_t end) {
  for (int64_t line = begin; line < end; ++line) {
    const int64_t plane = line / sizes.height;
    const float* const first = in + plane / sizes.depth * strides.image +
                               plane % sizes.depth * strides.depth + line % sizes.height * strides.height;
    bool found = false;
    for (int64_t i = 0; i < sizes.width * sizes.channels && !found; ++i) {
      found =
          !std::isfinite(first[i / sizes.channels * strides.width + i % sizes.channels * strides.channel]);
    }
    infinite[line] = found;
  }
}

Quantize quantizeTo(const RowGrid& grid, bool steps, Form form) {
  const CodeRange range{0, 255, steps ? grid.zero_point : 0};
  return {1 / grid.scale, steps ? 0 : static_cast<float>(grid.zero_point), range, form};
}

namespace {

JIT_PASSES_VECTORIZED void floatsOfSums(
    const int32_t* sums, int64_t first, int64_t count, const RowGrid& grid, const SumsToFloats& how,
    float* out) {
  const float* scales = how.scales + first;
  const float* bias = how.bias + first;
  const int32_t* of_weights = how.sums + first;
  const auto [scale, zero_point] = grid;
  for (int64_t c = 0; c < count; ++c) {
    const int32_t sum = sums[c] - zero_point * of_weights[c];
    out[c] = __builtin_fmaf(static_cast<float>(sum), scale * scales[c], bias[c]);
  }
}

JIT_PASSES_VECTORIZED void addResidual(const float* residual, int64_t count, float* out) {
  for (int64_t c = 0; c < count; ++c) {
    out[c] += residual[c];
  }
}

JIT_PASSES_VECTORIZED void storeCodes(const float* y, int64_t count, const ToCodes& to, uint8_t* out) {
  const float inverse = to.inverse_scale, offset = to.offset;
  const ToCode code(to.range);
  for (int64_t c = 0; c < count; ++c) {
    out[c] = code(__builtin_fmaf(y[c], inverse, offset));
  }
}

} // namespace

void storeFloats(
    const int32_t* sums, int64_t count, int64_t first, int64_t number, const uint8_t* residual, uint8_t* out,
    const SumsToFloats& how) {
  float floats[kPlainBlock];
  floatsOfSums(sums, first, count, how.grids[how.per_row ? number : 0], how, floats);
  how.function.run(floats, floats, count);
  if (residual) {
    addResidual(reinterpret_cast<const float*>(residual) + first, count, floats);
  }
  if (how.codes) {
    storeCodes(floats, count, *how.codes, out + first);
  } else {
    std::copy_n(floats, count, reinterpret_cast<float*>(out) + first);
  }
}

void store(
    const int32_t* sums, int64_t count, int64_t first, const Pixel& pixel, const Image& out,
    const SumsToFloats& how) {
  const auto& [n, z, y, x] = pixel;
  storeFloats(
      sums, count, first, ((n * out.depth + z) * out.height + y) * out.width + x,
      how.residual ? pixel.in(*how.residual) : nullptr, pixel.in(out), how);
}

#ifdef JIT_PASSES_HAS_VNNI

JIT_PASSES_VNNI void Convolution::runVnni(
    const Image& in, const Image& out, const SumsToFloats& how, int64_t begin, int64_t end) const {
  const VnniSums sums;
  TilesToFloats finish(sums, how, out);
  runTiles(in, out, how.residual, finish, begin, end);
}

#else

void Convolution::runVnni(const Image&, const Image&, const SumsToFloats&, int64_t, int64_t) const {}

#endif

} // namespace jit_passes::x86
