// Recurrent layers: products of the state and the weights, and the cell's functions, for 16 hidden units at a time.
//
// A step reads all weights for a few rows. So at small batches it takes as long as reading the weights from the cache:
// 1 MB for an LSTM with 512 units. The weights stay in the second cache if each thread has its own units. Each
// thread quantizes the state that it needs: this takes a few per cent of the products' time, and waiting for another
// thread takes more.
#include "recurrent.h"

#include <algorithm>
#include <array>
#include <utility>

#include "avx2.h"
#include "exponential.h"
#include "vnni.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kUnits = RecurrentLayer::kUnits, kMostGates = 4, kMostRows = 8;
constexpr int64_t kMostSums = 24; // registers of 16 sums, out of 32 registers

// Multiplies rows of codes by the weights of a block: [row][gate][unit].
using StateProducts = void (*)(
    const uint8_t* codes, int64_t stride, const int8_t* weight, int64_t quads, int64_t gates, int64_t rows,
    int32_t* sums);

JIT_PASSES_VECTORIZED void stateProductsPlain(
    const uint8_t* codes, int64_t stride, const int8_t* weight, int64_t quads, int64_t gates, int64_t rows,
    int32_t* sums) {
  std::fill_n(sums, rows * gates * kUnits, 0);
  for (int64_t quad = 0; quad < quads; ++quad) {
    for (int64_t row = 0; row < rows; ++row) {
      const uint8_t* x = codes + row * stride + 4 * quad;
      for (int64_t i = 0; i < gates * kUnits; ++i) {
        const int8_t* w = weight + 4 * (quad * gates * kUnits + i);
        sums[row * gates * kUnits + i] += x[0] * w[0] + x[1] * w[1] + x[2] * w[2] + x[3] * w[3];
      }
    }
  }
}

#ifdef JIT_PASSES_HAS_AVX2

// By products of pairs of int16, with two sums for each unit.
JIT_PASSES_AVX2 void stateProductsAvx2(
    const uint8_t* codes, int64_t stride, const int8_t* weight, int64_t quads, int64_t gates, int64_t rows,
    int32_t* sums) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t gate = 0; gate < gates; ++gate) {
      __m256i pairs[4] = {};
      for (int64_t quad = 0; quad < quads; ++quad) {
        int32_t four;
        __builtin_memcpy(&four, codes + row * stride + 4 * quad, 4);
        const __m256i x = _mm256_cvtepu8_epi16(_mm_set1_epi32(four));
        const int8_t* w = weight + 4 * kUnits * (quad * gates + gate);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const __m256i wide = _mm256_cvtepi8_epi16(load128(w + 16 * i));
          pairs[i] = _mm256_add_epi32(pairs[i], _mm256_madd_epi16(x, wide));
        }
      }
      int32_t* to = sums + (row * gates + gate) * kUnits;
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const __m256i mixed = _mm256_hadd_epi32(pairs[2 * i], pairs[2 * i + 1]);
        const __m256i eight = _mm256_permute4x64_epi64(mixed, 0b11011000);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8 * i), eight);
      }
    }
  }
}

#else
constexpr auto stateProductsAvx2 = stateProductsPlain;
#endif

#ifdef JIT_PASSES_HAS_VNNI

// With few sums, each sum has several registers, since a product takes four cycles.
template <int kGates, int kRows>
JIT_PASSES_VNNI void stateProductsTile(
    const uint8_t* codes, int64_t stride, const int8_t* weight, int64_t quads, int32_t* sums) {
  constexpr int kParts = kGates * kRows >= 6 ? 1 : kGates * kRows >= 3 ? 2 : 4;
  __m512i all[kParts][kRows][kGates] = {};
  const auto take = [&](int64_t quad, __m512i(&part)[kRows][kGates]) JIT_PASSES_VNNI {
    __m512i w[kGates];
#pragma GCC unroll 4
    for (int gate = 0; gate < kGates; ++gate) {
      w[gate] = _mm512_load_si512(weight + (quad * kGates + gate) * 64);
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      int32_t four;
      __builtin_memcpy(&four, codes + row * stride + 4 * quad, 4);
      const __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int gate = 0; gate < kGates; ++gate) {
        part[row][gate] = _mm512_dpbusd_epi32(part[row][gate], x, w[gate]);
      }
    }
  };
  int64_t quad = 0;
  for (; quad + kParts <= quads; quad += kParts) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      take(quad + part, all[part]);
    }
  }
  for (; quad < quads; ++quad) {
    take(quad, all[0]);
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int gate = 0; gate < kGates; ++gate) {
      __m512i sum = all[0][row][gate];
#pragma GCC unroll 4
      for (int part = 1; part < kParts; ++part) {
        sum = _mm512_add_epi32(sum, all[part][row][gate]);
      }
      _mm512_store_si512(sums + (row * kGates + gate) * kUnits, sum);
    }
  }
}

template <int kGates>
void stateProductsOf(
    const uint8_t* codes, int64_t stride, const int8_t* weight, int64_t quads, int64_t rows, int32_t* sums) {
  constexpr int kMost = std::min<int>(kMostSums / kGates, kMostRows);
  constexpr auto tiles = []<size_t... kRows>(std::index_sequence<kRows...>) {
    return std::array{stateProductsTile<kGates, int(kRows) + 1>...};
  }(std::make_index_sequence<kMost>());
  tiles[rows - 1](codes, stride, weight, quads, sums);
}

void stateProductsVnni(
    const uint8_t* codes, int64_t stride, const int8_t* weight, int64_t quads, int64_t gates, int64_t rows,
    int32_t* sums) {
  switch (gates) {
    case 1: return stateProductsOf<1>(codes, stride, weight, quads, rows, sums);
    case 3: return stateProductsOf<3>(codes, stride, weight, quads, rows, sums);
    default: return stateProductsOf<4>(codes, stride, weight, quads, rows, sums);
  }
}

#else
constexpr auto stateProductsVnni = stateProductsPlain;
#endif

StateProducts productsFor(Form form) {
  return form >= Form::Avx512  ? stateProductsVnni
         : form == Form::Plain ? stateProductsPlain
                               : stateProductsAvx2;
}

// The operands of a step for 16 units of a row. Gates that a cell lacks are not read.
struct Units {
  const int32_t *sums, *of_weights; // [gate][unit], like the next ones:
  const float *scales, *bias;
  RowGrid grid;
  const float* x[kMostGates];
  const float *h_before, *c_before;
  float *h, *c;
};

inline __attribute__((always_inline)) float productOf(const Units& units, int64_t gate, int64_t u) {
  const int64_t i = gate * kUnits + u;
  const int32_t sum = units.sums[i] - units.grid.zero_point * units.of_weights[i];
  return __builtin_fmaf(static_cast<float>(sum), units.grid.scale * units.scales[i], units.bias[i]);
}

JIT_PASSES_VECTORIZED void lstm(const Units& units) {
  float h[kUnits], c[kUnits];
  for (int64_t u = 0; u < kUnits; ++u) {
    const float i = sigmoidOf(units.x[0][u] + productOf(units, 0, u));
    const float f = sigmoidOf(units.x[1][u] + productOf(units, 1, u));
    const float g = tanhOf(units.x[2][u] + productOf(units, 2, u));
    const float o = sigmoidOf(units.x[3][u] + productOf(units, 3, u));
    c[u] = __builtin_fmaf(f, units.c_before[u], i * g);
    h[u] = o * tanhOf(c[u]);
  }
  std::copy_n(h, kUnits, units.h);
  std::copy_n(c, kUnits, units.c);
}

JIT_PASSES_VECTORIZED void gru(const Units& units) {
  float h[kUnits];
  for (int64_t u = 0; u < kUnits; ++u) {
    const float r = sigmoidOf(units.x[0][u] + productOf(units, 0, u));
    const float z = sigmoidOf(units.x[1][u] + productOf(units, 1, u));
    const float n = tanhOf(__builtin_fmaf(r, productOf(units, 2, u), units.x[2][u]));
    h[u] = __builtin_fmaf(z, units.h_before[u] - n, n);
  }
  std::copy_n(h, kUnits, units.h);
}

JIT_PASSES_VECTORIZED void plainTanh(const Units& units) {
  float h[kUnits];
  for (int64_t u = 0; u < kUnits; ++u) {
    h[u] = tanhOf(units.x[0][u] + productOf(units, 0, u));
  }
  std::copy_n(h, kUnits, units.h);
}

JIT_PASSES_VECTORIZED void plainRelu(const Units& units) {
  float h[kUnits];
  for (int64_t u = 0; u < kUnits; ++u) {
    const float v = units.x[0][u] + productOf(units, 0, u);
    h[u] = v < 0 ? 0 : v;
  }
  std::copy_n(h, kUnits, units.h);
}

void advanceUnits(Cell cell, const Units& units) {
  switch (cell) {
    case Cell::Lstm: return lstm(units);
    case Cell::Gru: return gru(units);
    case Cell::Tanh: return plainTanh(units);
    default: return plainRelu(units);
  }
}

// For fewer than 16 units, through memory for 16.
void advanceSome(Cell cell, Units units, int64_t count) {
  float read[kMostGates + 2][kUnits] = {}, h[kUnits], c[kUnits];
  const auto copied = [&](const float*& from, int64_t to) {
    std::copy_n(from, count, read[to]);
    from = read[to];
  };
  for (int64_t gate = 0; gate < gatesOf(cell); ++gate) {
    copied(units.x[gate], gate);
  }
  copied(units.h_before, kMostGates);
  if (cell == Cell::Lstm) {
    copied(units.c_before, kMostGates + 1);
  }
  float *const to_h = std::exchange(units.h, h), *const to_c = std::exchange(units.c, c);
  advanceUnits(cell, units);
  std::copy_n(h, count, to_h);
  if (cell == Cell::Lstm) {
    std::copy_n(c, count, to_c);
  }
}

// The size of the grids of so many rows, after which their codes begin.
int64_t bytesOfStateGrids(int64_t rows) { return (rows * int64_t(sizeof(RowGrid)) + 63) / 64 * 64; }

} // namespace

int64_t gatesOf(Cell cell) { return cell == Cell::Lstm ? 4 : cell == Cell::Gru ? 3 : 1; }
int64_t statesOf(Cell cell) { return cell == Cell::Lstm ? 2 : 1; }

RecurrentLayer::RecurrentLayer(
    Cell cell, int64_t directions, int64_t hidden, const int8_t* weight, const float* scales,
    const float* bias)
    : cell_(cell),
      directions_(directions),
      hidden_(hidden),
      gates_(gatesOf(cell)),
      weight_(directions * blocks() * blockBytes()),
      scales_(directions * blocks() * gates_ * kUnits),
      bias_(scales_.size()),
      sums_(scales_.size()) {
  for (int64_t row = 0; row < directions * gates_ * hidden; ++row) {
    const int64_t unit = row % hidden, gate = row / hidden % gates_, direction = row / hidden / gates_;
    const int64_t at = ((direction * blocks() + unit / kUnits) * gates_ + gate) * kUnits + unit % kUnits;
    scales_[at] = scales[row], bias_[at] = bias[row];
    for (int64_t product = 0; product < hidden; ++product) {
      const int8_t w = weight[row * hidden + product];
      weight_[place(direction, gate, unit, product)] = w;
      sums_[at] += w;
    }
  }
}

int64_t RecurrentLayer::place(int64_t direction, int64_t gate, int64_t unit, int64_t product) const {
  const int64_t block = direction * blocks() + unit / kUnits;
  const int64_t vector = product / 4 * gates_ + gate;
  return block * blockBytes() + (vector * kUnits + unit % kUnits) * 4 + product % 4;
}

void RecurrentLayer::unpack(int8_t* weight) const {
  for (int64_t row = 0; row < directions_ * gates_ * hidden_; ++row) {
    for (int64_t product = 0; product < hidden_; ++product) {
      *weight++ = weight_[place(row / hidden_ / gates_, row / hidden_ % gates_, row % hidden_, product)];
    }
  }
}

int64_t RecurrentLayer::mostRows() const { return std::min(kMostSums / gates_, kMostRows); }

bool RecurrentLayer::isWhole(int64_t rows) const {
  constexpr int64_t kFew = 1 << 16, kManyTiles = 8;
  return hidden_ * hidden_ * gates_ * rows * directions_ <= kFew || rows >= kManyTiles * mostRows();
}

int64_t RecurrentLayer::items(int64_t rows) const {
  return directions_ * (isWhole(rows) ? (rows + mostRows() - 1) / mostRows() : blocks());
}

int64_t RecurrentLayer::scratchBytes(int64_t rows) const {
  const int64_t some = isWhole(rows) ? std::min(rows, mostRows()) : rows;
  return bytesOfStateGrids(some) + some * hidden_ + kSlack;
}

void RecurrentLayer::runWhole(
    const Recurrence& on, const Options& how, uint8_t* scratch, int64_t begin, int64_t end) const {
  const int64_t tiles = items(on.rows) / directions_;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t direction = item / tiles, tile = item % tiles;
    const Interval rows{on.rows * tile / tiles, on.rows * (tile + 1) / tiles};
    for (int64_t step = 0; step < on.steps; ++step) {
      advance(on, how, direction, step, rows, {0, blocks()}, scratch);
    }
  }
}

void RecurrentLayer::runStep(
    const Recurrence& on, const Options& how, int64_t step, uint8_t* scratch, int64_t begin,
    int64_t end) const {
  for (int64_t item = begin, some; item < end; item += some) {
    const int64_t direction = item / blocks(), block = item % blocks();
    some = std::min(end - item, blocks() - block);
    advance(on, how, direction, step, {0, on.rows}, {block, block + some}, scratch);
  }
}

void RecurrentLayer::advance(
    const Recurrence& on, const Options& how, int64_t direction, int64_t step, Interval rows,
    Interval blocks_of, uint8_t* scratch) const {
  const bool backwards = direction == 1;
  const int64_t now = backwards ? on.steps - 1 - step : step, before = backwards ? now + 1 : now - 1;
  const int64_t state = direction * hidden_, memory = (directions_ + direction) * hidden_;
  const int64_t count = rows.end - rows.begin;
  const auto of_before = [&](int64_t row, const Sequence& first, int64_t at) -> const float* {
    return step == 0 ? first.at(direction, 0, row) : on.states.at(0, before, row) + at;
  };

  auto* grids = reinterpret_cast<RowGrid*>(scratch);
  uint8_t* codes = scratch + bytesOfStateGrids(count);
  Image floats;
  floats.data = reinterpret_cast<uint8_t*>(const_cast<float*>(of_before(rows.begin, on.hidden, state)));
  floats.width = count, floats.channels = hidden_;
  floats.pixel = step == 0 ? on.hidden.row : on.states.row;
  QuantizeRows{how.range, how.steps, how.form}.run(floats, grids, codes, 0, count);

  const auto multiply = productsFor(how.form);
  const int64_t tiles = (count + mostRows() - 1) / mostRows();
  for (int64_t block = blocks_of.begin; block < blocks_of.end; ++block) {
    const int64_t own = direction * blocks() + block, unit = block * kUnits;
    const int64_t units_here = std::min(kUnits, hidden_ - unit);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t first = count * tile / tiles, last = count * (tile + 1) / tiles;
      alignas(64) int32_t sums[kMostSums * kUnits];
      multiply(
          codes + first * hidden_, hidden_, weight_.data() + own * blockBytes(), quads(), gates_,
          last - first, sums);
      for (int64_t i = first; i < last; ++i) {
        const int64_t row = rows.begin + i;
        float* const result = on.states.at(0, now, row);
        Units units{
            sums + (i - first) * gates_ * kUnits,
            sums_.data() + own * gates_ * kUnits,
            scales_.data() + own * gates_ * kUnits,
            bias_.data() + own * gates_ * kUnits,
            grids[i],
            {},
            of_before(row, on.hidden, state) + unit,
            nullptr,
            result + state + unit,
            nullptr};
        for (int64_t gate = 0; gate < gates_; ++gate) {
          units.x[gate] = on.gates.at(direction, now, row) + gate * hidden_ + unit;
        }
        if (cell_ == Cell::Lstm) {
          units.c_before = of_before(row, on.memory, memory) + unit, units.c = result + memory + unit;
        }
        if (units_here == kUnits) {
          advanceUnits(cell_, units);
        } else {
          advanceSome(cell_, units, units_here);
        }
      }
    }
  }
}

} // namespace jit_passes::x86
