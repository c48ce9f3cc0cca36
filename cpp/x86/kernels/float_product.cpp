// Products of two activations of float32.
//
// The right operand is packed in blocks of 32 columns, row by row, padded with zeros, or read in place. A tile is 12
// rows by 32 columns, in 24 registers; each number of the left operand is broadcast to the columns. With registers of
// 256 bits a tile is four parts of 6 rows by 16 columns, in 12 registers each.
#include <algorithm>
#include <cstring>

#include "avx2.h"
#include "floats.h"
#include "plain.h"
#include "vnni.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kColumns = 32, kTileRows = 12, kFloatBytes = sizeof(float);
constexpr int64_t kMostCopied = 256; // rows of a block that is copied just ahead of its products: 32 KB

struct FloatBlocks {
  FloatBlocks(const FloatProduct& product, const Image& b)
      : products(product.transposed ? b.channels : b.width),
        columns(product.transposed ? b.width : b.channels),
        blocks((columns + kColumns - 1) / kColumns),
        block_floats(products * kColumns) {}

  int64_t count(int64_t block) const { return std::min(kColumns, columns - block * kColumns); }

  int64_t products, columns, blocks, block_floats;
};

// `step` is the number of floats from one column to the next, `stride` from row to row.
struct FloatColumns {
  const float* data;
  int64_t step, stride;
};

void packPlainFloats(const FloatColumns& from, int64_t products, int64_t count, float* to) {
  for (int64_t k = 0; k < products; ++k, to += kColumns) {
    for (int64_t n = 0; n < count; ++n) {
      to[n] = from.data[n * from.step + k * from.stride];
    }
    std::fill(to + count, to + kColumns, 0.0F);
  }
}

struct FloatTile {
  const float *a, *b;
  float* out;
  int64_t a_step, b_step, out_step, products, columns; // steps from row to row
};

JIT_PASSES_VECTORIZED void multiplyRowPlain(
    const float* a, const float* b, int64_t b_step, int64_t products, float* sums) {
  for (int64_t k = 0; k < products; ++k, b += b_step) {
    for (int64_t n = 0; n < kColumns; ++n) {
      sums[n] = __builtin_fmaf(a[k], b[n], sums[n]);
    }
  }
}

void multiplyFloatsPlain(const FloatTile& tile, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    float sums[kColumns] = {};
    multiplyRowPlain(tile.a + row * tile.a_step, tile.b, tile.b_step, tile.products, sums);
    std::copy_n(sums, tile.columns, tile.out + row * tile.out_step);
  }
}

#ifdef JIT_PASSES_HAS_VNNI

// t[i], float j  <->  t[j], float i
JIT_PASSES_VNNI_INLINE void transposeFloats(__m512 (&t)[16]) {
  __m512 pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(t[i], t[i + 1]), pairs[i + 1] = _mm512_unpackhi_ps(t[i], t[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const __m512d a = _mm512_castps_pd(pairs[i + j]), b = _mm512_castps_pd(pairs[i + j + 2]);
      t[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      t[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  // Lane l of t[4 q + i] has float 4 l + i of the rows from 4 q on.
  for (int i = 0; i < 4; ++i) {
    const __m512 a = _mm512_shuffle_f32x4(t[i], t[4 + i], 0x88),
                 b = _mm512_shuffle_f32x4(t[i], t[4 + i], 0xDD);
    const __m512 c = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0xDD);
    t[i] = _mm512_shuffle_f32x4(a, c, 0x88), t[8 + i] = _mm512_shuffle_f32x4(a, c, 0xDD);
    t[4 + i] = _mm512_shuffle_f32x4(b, d, 0x88), t[12 + i] = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
}

JIT_PASSES_VNNI void packVnniFloats(const FloatColumns& from, int64_t products, int64_t count, float* to) {
  for (int64_t group = 0; group < kColumns; group += 16) {
    const int64_t columns = std::clamp<int64_t>(count - group, 0, 16);
    const float* data = from.data + group * from.step;
    const auto lanes = static_cast<__mmask16>(firstLanes(columns));
    for (int64_t k = 0; k < products; k += 16) {
      const int64_t rows = std::min<int64_t>(products - k, 16);
      const auto some = static_cast<__mmask16>(firstLanes(rows));
      __m512 block[16];
      for (int64_t i = 0; i < 16; ++i) {
        block[i] = from.step == 1
                       ? _mm512_maskz_loadu_ps(i < rows ? lanes : __mmask16{0}, data + (k + i) * from.stride)
                       : _mm512_maskz_loadu_ps(i < columns ? some : __mmask16{0}, data + k + i * from.step);
      }
      if (from.step != 1) {
        transposeFloats(block);
      }
      for (int64_t i = 0; i < rows; ++i) {
        _mm512_store_ps(to + (k + i) * kColumns + group, block[i]);
      }
    }
  }
}

template <int kRows>
JIT_PASSES_VNNI void multiplyFloatTile(const FloatTile& tile) {
  __m512 sums[kRows][2];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    sums[row][0] = sums[row][1] = _mm512_setzero_ps();
  }
  const float *a = tile.a, *b = tile.b;
  const int64_t step = tile.a_step, b_step = tile.b_step;
  for (int64_t k = 0; k < tile.products; ++k, ++a, b += b_step) {
    const __m512 left = _mm512_loadu_ps(b), right = _mm512_loadu_ps(b + 16);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const __m512 x = _mm512_set1_ps(a[row * step]);
      sums[row][0] = _mm512_fmadd_ps(x, left, sums[row][0]);
      sums[row][1] = _mm512_fmadd_ps(x, right, sums[row][1]);
    }
  }
  const auto lanes = static_cast<uint32_t>(firstLanes(tile.columns));
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    float* to = tile.out + row * tile.out_step;
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>(lanes), sums[row][0]);
    _mm512_mask_storeu_ps(to + 16, static_cast<__mmask16>(lanes >> 16), sums[row][1]);
  }
}

void multiplyFloatsVnni(const FloatTile& tile, int64_t rows) {
  constexpr void (*kTiles[kTileRows])(const FloatTile&) = {
      multiplyFloatTile<1>, multiplyFloatTile<2>,  multiplyFloatTile<3>,  multiplyFloatTile<4>,
      multiplyFloatTile<5>, multiplyFloatTile<6>,  multiplyFloatTile<7>,  multiplyFloatTile<8>,
      multiplyFloatTile<9>, multiplyFloatTile<10>, multiplyFloatTile<11>, multiplyFloatTile<12>};
  kTiles[rows - 1](tile);
}

#else
constexpr auto packVnniFloats = packPlainFloats;
constexpr auto multiplyFloatsVnni = multiplyFloatsPlain;
#endif

#ifdef JIT_PASSES_HAS_AVX2

constexpr int64_t kPartRows = 6, kPartColumns = 16;

template <int kRows>
JIT_PASSES_AVX2 void multiplyFloatPart(const FloatTile& tile) {
  __m256 sums[kRows][2];
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
    sums[row][0] = sums[row][1] = _mm256_setzero_ps();
  }
  const float *a = tile.a, *b = tile.b;
  const int64_t step = tile.a_step, b_step = tile.b_step;
  for (int64_t k = 0; k < tile.products; ++k, ++a, b += b_step) {
    const __m256 left = _mm256_loadu_ps(b), right = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      const __m256 x = _mm256_broadcast_ss(a + row * step);
      sums[row][0] = _mm256_fmadd_ps(x, left, sums[row][0]);
      sums[row][1] = _mm256_fmadd_ps(x, right, sums[row][1]);
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
    float* to = tile.out + row * tile.out_step;
    if (tile.columns >= kPartColumns) {
      _mm256_storeu_ps(to, sums[row][0]);
      _mm256_storeu_ps(to + 8, sums[row][1]);
    } else {
      float some[kPartColumns];
      _mm256_storeu_ps(some, sums[row][0]);
      _mm256_storeu_ps(some + 8, sums[row][1]);
      std::copy_n(some, tile.columns, to);
    }
  }
}

void multiplyFloatsAvx2(const FloatTile& tile, int64_t rows) {
  constexpr void (*kParts[kPartRows])(const FloatTile&) = {multiplyFloatPart<1>, multiplyFloatPart<2>,
                                                           multiplyFloatPart<3>, multiplyFloatPart<4>,
                                                           multiplyFloatPart<5>, multiplyFloatPart<6>};
  for (int64_t row = 0; row < rows; row += kPartRows) {
    for (int64_t column = 0; column < tile.columns; column += kPartColumns) {
      FloatTile part = tile;
      part.a += row * tile.a_step, part.b += column;
      part.out += row * tile.out_step + column, part.columns -= column;
      kParts[std::min(kPartRows, rows - row) - 1](part);
    }
  }
}

#else
constexpr auto multiplyFloatsAvx2 = multiplyFloatsPlain;
#endif

// Which matrix of the result: image n, plane z, row y.
struct Position {
  Position(const Image& out, int64_t index)
      : n(index / out.height / out.depth), z(index / out.height % out.depth), y(index % out.height) {}

  // The number of the operand's matrix. A single image, plane or row of images may serve for all.
  int64_t matrixOf(const Image& image) const {
    const int64_t of_n = image.images == 1 ? 0 : n, of_z = image.depth == 1 ? 0 : z;
    return (of_n * image.depth + of_z) * image.height + (image.height == 1 ? 0 : y);
  }

  int64_t n, z, y;
};

auto multiplierOf(Form form) {
  return form == Form::Plain    ? multiplyFloatsPlain
         : form >= Form::Avx512 ? multiplyFloatsVnni
                                : multiplyFloatsAvx2;
}

auto packerOf(Form form) { return form >= Form::Avx512 ? packVnniFloats : packPlainFloats; }

FloatColumns columnsOf(const FloatProduct& product, const Image& b) {
  const int64_t pixel = b.pixel / kFloatBytes;
  return {nullptr, product.transposed ? pixel : 1, product.transposed ? 1 : pixel};
}

void applyTo(float* rows, int64_t count, int64_t step, int64_t columns, const FloatFunction& function) {
  for (int64_t row = 0; row < count && function.which != FloatFunction::None; ++row, rows += step) {
    function.run(rows, rows, columns);
  }
}

// The number of tiles of a matrix. Tiles have nearly equal numbers of rows.
int64_t tilesOf(const Image& out) { return (out.width + kTileRows - 1) / kTileRows; }

} // namespace

int64_t FloatProduct::packedBytes(const Image& b) const {
  const FloatBlocks form(*this, b);
  return b.rows() * form.blocks * form.block_floats * kFloatBytes;
}

int64_t FloatProduct::packItems(const Image& b) const { return b.rows() * FloatBlocks(*this, b).blocks; }

void FloatProduct::pack(const Image& b, uint8_t* packed, int64_t begin, int64_t end) const {
  const FloatBlocks matrix(*this, b);
  const auto run = packerOf(form);
  FloatColumns from = columnsOf(*this, b);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item % matrix.blocks;
    from.data = reinterpret_cast<const float*>(b.rowAt(item / matrix.blocks)) + block * kColumns * from.step;
    run(from, matrix.products, matrix.count(block),
        reinterpret_cast<float*>(packed) + item * matrix.block_floats);
  }
}

bool FloatProduct::canReadInPlace(const Image& b, int64_t matrices, int64_t rows) const {
  const FloatBlocks matrix(*this, b);
  const bool copies_none = !transposed && matrix.columns % kColumns == 0;
  return rows > 0 && rows <= kTileRows && b.rows() == matrices &&
         (copies_none || matrix.products <= kMostCopied);
}

int64_t FloatProduct::items(const Image& out) const {
  return out.rows() * (in_place ? (out.channels + kColumns - 1) / kColumns : tilesOf(out));
}

void FloatProduct::run(
    const Image& a, const Image& b, const uint8_t* packed, const Image& out, int64_t begin,
    int64_t end) const {
  if (in_place) {
    return runInPlace(a, b, out, begin, end);
  }
  const FloatBlocks matrix(*this, b);
  const auto multiply = multiplierOf(form);
  const int64_t tiles = tilesOf(out);
  for (int64_t item = begin; item < end; ++item) {
    const Position at(out, item / tiles);
    const int64_t tile = item % tiles;
    const int64_t first = out.width * tile / tiles, rows = out.width * (tile + 1) / tiles - first;
    const auto* of_b =
        reinterpret_cast<const float*>(packed) + at.matrixOf(b) * matrix.blocks * matrix.block_floats;
    FloatTile of_tile{
        reinterpret_cast<const float*>(a.rowAt(at.matrixOf(a)) + first * a.pixel),
        of_b,
        reinterpret_cast<float*>(out.at(at.n, at.z, at.y, first)),
        a.pixel / kFloatBytes,
        kColumns,
        out.pixel / kFloatBytes,
        matrix.products,
        0};
    float* const begin_of_rows = of_tile.out;
    for (int64_t block = 0; block < matrix.blocks; ++block) {
      of_tile.columns = matrix.count(block);
      multiply(of_tile, rows);
      of_tile.b += matrix.block_floats, of_tile.out += kColumns;
    }
    applyTo(begin_of_rows, rows, of_tile.out_step, matrix.columns, function);
  }
}

void FloatProduct::runInPlace(
    const Image& a, const Image& b, const Image& out, int64_t begin, int64_t end) const {
  const FloatBlocks matrix(*this, b);
  const auto multiply = multiplierOf(form);
  const auto copy = packerOf(form);
  const FloatColumns columns = columnsOf(*this, b);
  alignas(64) float copied[kMostCopied * kColumns];
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item % matrix.blocks, count = matrix.count(block);
    const Position at(out, item / matrix.blocks);
    FloatColumns from = columns;
    from.data = reinterpret_cast<const float*>(b.rowAt(at.matrixOf(b))) + block * kColumns * columns.step;
    FloatTile tile{
        reinterpret_cast<const float*>(a.rowAt(at.matrixOf(a))),
        from.data,
        reinterpret_cast<float*>(out.at(at.n, at.z, at.y, 0)) + block * kColumns,
        a.pixel / kFloatBytes,
        columns.stride,
        out.pixel / kFloatBytes,
        matrix.products,
        count};
    if (transposed || count < kColumns) {
      copy(from, matrix.products, count, copied);
      tile.b = copied, tile.b_step = kColumns;
    }
    multiply(tile, out.width);
    applyTo(tile.out, out.width, tile.out_step, count, function);
  }
}

} // namespace jit_passes::x86
