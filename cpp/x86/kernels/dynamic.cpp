// Linear layers whose input is quantized as the model runs: ranges, rows of codes, and sums that become float32.
#include "x86/dynamic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "convolution_tile.h"
#include "plain.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kExtentParts = 64;
constexpr int64_t kRowsOfHalf = 7, kRowsOfTile = 2 * kRowsOfHalf; // see convolution_tile.h
constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

// Comparing leaves a NaN out, so its bits are looked at too.
JIT_PASSES_VECTORIZED Extent extentOf(const float* x, int64_t count) {
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
  return finite ? Extent{low[0], high[0]} : Extent{kNoNumber, kNoNumber};
}

Extent extentOf(const Extent* parts, int64_t count) {
  Extent all;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isnan(parts[i].low)) {
      return parts[i];
    }
    all = {std::min(all.low, parts[i].low), std::max(all.high, parts[i].high)};
  }
  return all;
}

const uint8_t* rowOf(const Image& image, int64_t row) {
  return image.rows() == 1 ? image.data + row * image.pixel
                           : image.rowAt(row / image.width) + row % image.width * image.pixel;
}

// So many rows at a time, where they are neighbours in memory.
int64_t rowsAtOnce(const Image& image) {
  const bool dense = image.rows() == 1 && image.pixel == image.channels * int64_t(sizeof(float));
  return dense ? image.width : 1;
}

} // namespace

RowGrid gridOf(const Extent& extent, bool symmetric) {
  constexpr float kSteps = 255, kSmallest = std::numeric_limits<float>::epsilon();
  const auto [low, high] = extent;
  if (std::isnan(low)) {
    return {kNoNumber, 0};
  }
  if (symmetric) {
    const double span = 2 * static_cast<double>(std::max(-low, high));
    return {std::max(static_cast<float>(span / kSteps), kSmallest), 128};
  }
  const float span = high - low; // of finite numbers, it may be infinite
  const float found =
      std::isinf(span) ? static_cast<float>((static_cast<double>(high) - low) / kSteps) : span / kSteps;
  const float scale = std::max(found, kSmallest);
  const float zero_point = -__builtin_rintf(low / scale);
  return {scale, static_cast<int32_t>(std::clamp(zero_point, 0.0F, kSteps))};
}

void Measure::run(const Image& in, Extent* parts, int64_t begin, int64_t end) const {
  const int64_t rows = in.rows() * in.width, count = items(in), most = rowsAtOnce(in);
  for (int64_t part = begin; part < end; ++part) {
    Extent found[2];
    const int64_t last = rows * (part + 1) / count;
    for (int64_t row = rows * part / count, some; row < last; row += some) {
      some = std::min(most, last - row);
      found[1] = extentOf(reinterpret_cast<const float*>(rowOf(in, row)), some * in.channels);
      found[0] = extentOf(found, 2);
    }
    parts[part] = found[0];
  }
}

void QuantizeRows::run(
    const Image& in, const Extent* parts, RowGrid* grids, uint8_t* codes, int64_t begin, int64_t end) const {
  RowGrid grid{};
  if (!per_row) {
    grid = gridOf(extentOf(parts, Measure().items(in)), symmetric);
    if (begin == 0) {
      grids[0] = grid;
    }
  }
  const int64_t most = per_row ? 1 : rowsAtOnce(in);
  for (int64_t row = begin, some; row < end; row += some) {
    some = std::min(most, end - row);
    const auto* x = reinterpret_cast<const float*>(rowOf(in, row));
    const int64_t count = some * in.channels;
    if (per_row) {
      grids[row] = grid = gridOf(extentOf(x, count), symmetric);
    }
    Image to;
    to.data = codes + row * in.channels;
    to.channels = to.pixel = count;
    const Quantize rounding{1 / grid.scale, static_cast<float>(grid.zero_point), 0, 255, form};
    rounding.run(x, {0, 0, 0, count, 1}, to, 0, 1);
  }
}

namespace {

JIT_PASSES_VECTORIZED void floatsOfSums(
    const int32_t* sums, int64_t first, int64_t count, const RowGrid& grid, const RowsToFloats& how,
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

// Where 32 channels of a row go, and what is added to them.
struct RowTarget {
  float* out;
  const float* residual;
};

RowTarget targetOf(const Image& out, const RowsToFloats& how, int64_t row, int64_t first) {
  const auto at = [&](const Image& image) {
    return reinterpret_cast<float*>(const_cast<uint8_t*>(rowOf(image, row))) + first;
  };
  return {at(out), how.residual ? at(*how.residual) : nullptr};
}

// Rows in halves of tiles, as many in each; the last ones overlap those before.
struct RowTiles {
  explicit RowTiles(int64_t rows)
      : tiles((rows + kRowsOfTile - 1) / kRowsOfTile),
        half(tiles ? (rows + 2 * tiles - 1) / (2 * tiles) : 0) {}

  int64_t tiles, half;
};

#ifdef JIT_PASSES_HAS_VNNI

// Of 32 channels, of which `count` exist.
JIT_PASSES_VNNI_INLINE void floatsOfSumsVnni(
    const int32_t* sums, int64_t first, int64_t count, const RowGrid& grid, const RowsToFloats& how,
    float* out) {
  const __m512i zero_point = _mm512_set1_epi32(grid.zero_point);
  const __m512 scale = _mm512_set1_ps(grid.scale);
  for (int64_t c = 0; c < count; c += kLanes) {
    const auto lanes = static_cast<__mmask16>(firstLanes(std::min(count - c, kLanes)));
    const __m512i of_weights = _mm512_maskz_loadu_epi32(lanes, how.sums + first + c);
    const __m512i sum =
        _mm512_sub_epi32(_mm512_load_si512(sums + c), _mm512_mullo_epi32(zero_point, of_weights));
    const __m512 by = _mm512_mul_ps(scale, _mm512_maskz_loadu_ps(lanes, how.scales + first + c));
    const __m512 bias = _mm512_maskz_loadu_ps(lanes, how.bias + first + c);
    _mm512_store_ps(out + c, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), by, bias));
  }
}

JIT_PASSES_VNNI_INLINE void storeRow(const float* from, int64_t count, const RowTarget& to) {
  for (int64_t c = 0; c < count; c += kLanes) {
    const auto lanes = static_cast<__mmask16>(firstLanes(std::min(count - c, kLanes)));
    __m512 x = _mm512_load_ps(from + c);
    if (to.residual) {
      x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(lanes, to.residual + c));
    }
    _mm512_mask_storeu_ps(to.out + c, lanes, x);
  }
}

#endif

} // namespace

int64_t Convolution::floatItems(int64_t rows) const {
  return form_ == Form::Plain ? rows : RowTiles(rows).tiles * static_cast<int64_t>(blocks_.size());
}

void Convolution::runFloats(
    const uint8_t* codes, const Image& out, const RowsToFloats& how, int64_t begin, int64_t end) const {
  const auto run = form_ == Form::Vnni ? &Convolution::runFloatsVnni : &Convolution::runFloatsPlain;
  (this->*run)(codes, out, how, begin, end);
}

void Convolution::runFloatsPlain(
    const uint8_t* codes, const Image& out, const RowsToFloats& how, int64_t begin, int64_t end) const {
  const int64_t products = padded(in_channels_);
  int16_t copy[padded(kMostProducts)];
  std::fill_n(copy, products, int16_t{0});
  int32_t sums[kPlainBlock];
  float floats[kPlainBlock];
  for (int64_t row = begin; row < end; ++row) {
    widen(codes + row * in_channels_, in_channels_, copy);
    for (int64_t first = 0; first < out_channels_; first += kPlainBlock) {
      const int64_t count = std::min(kPlainBlock, out_channels_ - first);
      const RowTarget target = targetOf(out, how, row, first);
      multiplyRows(copy, packed_.data() + first * products, products, count, start_.data() + first, sums);
      floatsOfSums(sums, first, count, how.grids[how.per_row ? row : 0], how, floats);
      how.function.run(floats, floats, count);
      if (target.residual) {
        addResidual(target.residual, count, floats);
      }
      std::copy_n(floats, count, target.out);
    }
  }
}

#ifdef JIT_PASSES_HAS_VNNI

// The larger of weights and input is gone through once, and divided between threads.
JIT_PASSES_VNNI void Convolution::runFloatsVnni(
    const uint8_t* codes, const Image& out, const RowsToFloats& how, int64_t begin, int64_t end) const {
  const int64_t rows = out.rows() * out.width, blocks = static_cast<int64_t>(blocks_.size());
  const RowTiles work(rows);
  const bool by_block = static_cast<int64_t>(packed_.size()) > rows * in_channels_;
  const int64_t inner = by_block ? work.tiles : blocks;
  const int64_t block_bytes = quads_ * 2 * kLanes * 4, fetched_by_tile = quads_ / 4 * 128;
  const int64_t jumps[1] = {0};
  constexpr int64_t kRow = 2 * kLanes, kTileSums = kRowsOfTile * kRow;
  alignas(64) int32_t sums[kTileSums] = {};
  alignas(64) float floats[kTileSums] = {};
  for (int64_t item = begin; item < end; ++item) {
    const int64_t outer = item / inner, position = item % inner;
    const int64_t tile = by_block ? position : outer, number = by_block ? outer : position;
    const Block& block = blocks_[number];
    int64_t starts[2], skips[2];
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t first = (2 * tile + i) * work.half;
      starts[i] = std::min(first, rows - work.half);
      skips[i] = first - starts[i]; // rows that the half before has
    }
    const Tile operands{
        {codes + starts[0] * in_channels_, codes + starts[1] * in_channels_}, in_channels_, jumps, 1, quads_};
    const int8_t* weight = packed_.data() + block.weight;
    const int64_t fetched = by_block ? position * fetched_by_tile : 0;
    const bool fetch = by_block && number + 1 < blocks && fetched + fetched_by_tile <= block_bytes;
    multiplyTileFor(Gives::Sums, block.columns, work.half)(
        operands, 0, weight, fetch ? weight + block_bytes + fetched : weight, start_.data() + number * kRow,
        sums);
    for (int64_t p = 0; p < work.half; ++p) {
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t at = (2 * p + i) * kRow, row = starts[i] + p;
        floatsOfSumsVnni(
            sums + at, block.first, block.count, how.grids[how.per_row ? row : 0], how, floats + at);
      }
    }
    how.function.run(floats, floats, 2 * work.half * kRow);
    for (int64_t p = 0; p < work.half; ++p) {
      for (int64_t i = 0; i < 2; ++i) {
        if (p >= skips[i]) {
          storeRow(floats + (2 * p + i) * kRow, block.count, targetOf(out, how, starts[i] + p, block.first));
        }
      }
    }
  }
}

#else

void Convolution::runFloatsVnni(const uint8_t*, const Image&, const RowsToFloats&, int64_t, int64_t) const {}

#endif

} // namespace jit_passes::x86
