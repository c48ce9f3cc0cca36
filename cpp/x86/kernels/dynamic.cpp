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

namespace {

// In double, with steps of 6.1e-5 at least, for which the ends move out in proportion: chooseFbgemm in
// cpp/ops/dynamic.cpp, number by number.
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
  constexpr float kSteps = 255, kSmallest = std::numeric_limits<float>::epsilon();
  const auto [low, high] = extent;
  if (std::isnan(low)) {
    return {kNoNumber, 0};
  }
  if (form == RangeForm::Fbgemm) {
    return fbgemmGrid(low, high);
  }
  if (form == RangeForm::Symmetric) {
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
    grid = gridOf(extentOf(parts, Measure().items(in)), range);
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
      grids[row] = grid = gridOf(extentOf(x, count), range);
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

// What 32 channels of all rows have in common; of one grid for all rows, times that.
struct BlockScales {
  __m512i sums[2];
  __m512 scales[2], bias[2];
  __mmask16 lanes[2];
};

JIT_PASSES_VNNI_INLINE BlockScales multiplied(const BlockScales& by, const RowGrid& grid) {
  BlockScales result = by;
  for (int i = 0; i < 2; ++i) {
    result.sums[i] = _mm512_mullo_epi32(_mm512_set1_epi32(grid.zero_point), by.sums[i]);
    result.scales[i] = _mm512_mul_ps(_mm512_set1_ps(grid.scale), by.scales[i]);
  }
  return result;
}

JIT_PASSES_VNNI_INLINE BlockScales scalesOf(const RowsToFloats& how, int64_t first, int64_t count) {
  BlockScales block;
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t at = first + i * kLanes;
    const __mmask16 lanes = block.lanes[i] = firstLanes(count) >> (i * kLanes) & 0xFFFF;
    block.sums[i] = _mm512_maskz_loadu_epi32(lanes, how.sums + at);
    block.scales[i] = _mm512_maskz_loadu_ps(lanes, how.scales + at);
    block.bias[i] = _mm512_maskz_loadu_ps(lanes, how.bias + at);
  }
  return how.per_row ? block : multiplied(block, how.grids[0]);
}

JIT_PASSES_VNNI_INLINE __m512 floatsOfSums(const int32_t* sums, const BlockScales& block, int i) {
  const __m512i sum = _mm512_sub_epi32(_mm512_load_si512(sums + i * kLanes), block.sums[i]);
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), block.scales[i], block.bias[i]);
}

JIT_PASSES_VNNI_INLINE void storeFloats(__m512 x, __mmask16 lanes, int i, const RowTarget& to) {
  if (to.residual) {
    x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(lanes, to.residual + i * kLanes));
  }
  _mm512_mask_storeu_ps(to.out + i * kLanes, lanes, x);
}

// The rows of a half of a tile, from `begin` on.
struct HalfRows {
  int64_t start, begin, end; // of the first one, in the matrix; of those that are stored, in the half
};

// Sums of one half: 64 numbers from row to row, since the other half's lie between. With a function, they pass
// through `floats`.
JIT_PASSES_VNNI void finishHalf(
    const int32_t* sums, const HalfRows& rows, const BlockScales& block, int64_t first, const Image& out,
    const RowsToFloats& how, float* floats) {
  constexpr int64_t kStep = 4 * kLanes;
  const bool direct = how.function.which == FloatFunction::None;
  for (int64_t p = rows.begin; p < rows.end; ++p) {
    const int64_t row = rows.start + p;
    const BlockScales own = how.per_row ? multiplied(block, how.grids[row]) : block;
    const RowTarget target = targetOf(out, how, row, first);
    for (int i = 0; i < 2; ++i) {
      const __m512 x = floatsOfSums(sums + p * kStep, own, i);
      if (direct) {
        storeFloats(x, block.lanes[i], i, target);
      } else {
        _mm512_store_ps(floats + (2 * p + i) * kLanes, x);
      }
    }
  }
  if (direct || rows.begin >= rows.end) {
    return;
  }
  float* const begin = floats + 2 * rows.begin * kLanes;
  how.function.run(begin, begin, 2 * (rows.end - rows.begin) * kLanes);
  for (int64_t p = rows.begin; p < rows.end; ++p) {
    const RowTarget target = targetOf(out, how, rows.start + p, first);
    for (int i = 0; i < 2; ++i) {
      storeFloats(_mm512_load_ps(floats + (2 * p + i) * kLanes), block.lanes[i], i, target);
    }
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
  alignas(64) float floats[kTileSums / 2];
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
    const BlockScales scales = scalesOf(how, block.first, block.count);
    for (int64_t i = 0; i < 2; ++i) {
      finishHalf(sums + i * kRow, {starts[i], skips[i], work.half}, scales, block.first, out, how, floats);
    }
  }
}

#else

void Convolution::runFloatsVnni(const uint8_t*, const Image&, const RowsToFloats&, int64_t, int64_t) const {}

#endif

} // namespace jit_passes::x86
