// Products of two activations.
//
// Codes of the right operand become int8 by taking 128 off. They lie in blocks of 32 columns, each behind the 32
// numbers with which its sums begin: for AVX-512 like weights of a convolution, [four rows][column][4], filled up with
// zeros; for the plain form row by row. With b' = b - 128 and z' = z_b - 128,
//
//   sum of (a - z_a) (b - z_b) = sum of a b' + (K z_a z' - z_a sum of b') - z' sum of a
//
// where the bracket depends on the column only, and what is behind it on the row only.
#include "x86/attention.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "convolution_tile.h"
#include "plain.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kTileHalf = 7, kGroup = 16, kBlock = 2 * kGroup;

// The packed form of one matrix.
struct PackedMatrix {
  PackedMatrix(const MatrixProduct& product, const Image& b)
      : products(product.products(b)),
        columns(product.columns(b)),
        quads((products + 3) / 4),
        blocks((columns + kBlock - 1) / kBlock),
        block_bytes(4 * kBlock * (quads + 1)) {}

  // Columns that exist, and groups of 16 that hold them.
  int64_t count(int64_t block) const { return std::min(kBlock, columns - block * kBlock); }
  int64_t groups(int64_t block) const { return count(block) > kGroup ? 2 : 1; }

  int64_t products, columns, quads, blocks, block_bytes;
};

// The codes of a block's columns, `step` bytes from one to the next, and `stride` from row to row of the matrix.
struct Columns {
  const uint8_t* data;
  int64_t step, stride;
};

void packPlain(
    const MatrixProduct& product, const PackedMatrix& form, int64_t block, const Columns& from, uint8_t* to) {
  const int64_t count = form.count(block), columns = form.groups(block) * kGroup;
  auto* start = reinterpret_cast<int32_t*>(to);
  auto* weights = reinterpret_cast<int8_t*>(to + 4 * kBlock);
  const int32_t z = product.b_zero_point - 128;
  for (int64_t n = 0; n < columns; ++n) {
    int32_t sum = 0;
    for (int64_t k = 0; k < form.products; ++k) {
      const uint8_t code_of_b = n < count ? from.data[n * from.step + k * from.stride] : 128;
      const auto code = static_cast<int8_t>(code_of_b ^ 0x80);
      weights[k * columns + n] = code;
      sum += code;
    }
    start[n] = product.a_zero_point * (static_cast<int32_t>(form.products) * z - sum);
  }
}

// Rows of a tile that lie in one half, and where they go; the first `skip` are those of the half before.
struct Half {
  const uint8_t* in;
  uint8_t* out;
  int64_t skip;
};

struct RowTile {
  Half halves[2];
  int64_t rows, in_step, out_step; // rows of each half
};

JIT_PASSES_VECTORIZED void multiplyRow(
    const uint8_t* row, const int8_t* weights, int64_t products, int64_t columns, int32_t* sums) {
  for (int64_t k = 0; k < products; ++k, weights += columns) {
    const int16_t code = row[k];
    for (int64_t n = 0; n < columns; ++n) {
      sums[n] += code * weights[n];
    }
  }
}

JIT_PASSES_VECTORIZED void storeRow(
    const int32_t* sums, int32_t of_row, int64_t count, const MatrixProduct& product, uint8_t* out) {
  const float multiplier = product.multiplier, offset = product.offset, low = product.low,
              high = product.high;
  for (int64_t n = 0; n < count; ++n) {
    out[n] = codeOf(__builtin_fmaf(sums[n] + of_row, multiplier, offset), low, high);
  }
  lookUpInPlace(out, count, product.table);
}

void multiplyPlain(
    const MatrixProduct& product, const PackedMatrix& form, const uint8_t* packed, const RowTile& tile) {
  const int32_t z = product.b_zero_point - 128;
  for (const Half& half : tile.halves) {
    for (int64_t row = half.skip; row < tile.rows; ++row) {
      const uint8_t* in = half.in + row * tile.in_step;
      int32_t sum = 0;
      for (int64_t k = 0; k < form.products; ++k) {
        sum += in[k];
      }
      for (int64_t block = 0; block < form.blocks; ++block) {
        const uint8_t* of_block = packed + block * form.block_bytes;
        int32_t sums[kBlock];
        std::memcpy(sums, of_block, sizeof(sums));
        multiplyRow(
            in, reinterpret_cast<const int8_t*>(of_block + 4 * kBlock), form.products,
            form.groups(block) * kGroup, sums);
        storeRow(sums, -z * sum, form.count(block), product, half.out + row * tile.out_step + block * kBlock);
      }
    }
  }
}

#ifdef JIT_PASSES_HAS_VNNI

// Rows `k` to `k + 3` of 16 neighbouring columns, in the order of the packed form.
JIT_PASSES_VNNI_INLINE __m512i fourRows(const Columns& from, int64_t k, int64_t rows, __mmask16 lanes) {
  const auto row = [&](int64_t i) JIT_PASSES_VNNI {
    return _mm_maskz_loadu_epi8(i < rows ? lanes : __mmask16{0}, from.data + (k + i) * from.stride);
  };
  __m512i all = _mm512_castsi128_si512(row(0));
  all = _mm512_inserti32x4(all, row(1), 1);
  all = _mm512_inserti32x4(all, row(2), 2);
  all = _mm512_inserti32x4(all, row(3), 3);
  alignas(64) static constexpr auto order = [] {
    std::array<uint8_t, 64> made{};
    for (int i = 0; i < 64; ++i) {
      made[i] = static_cast<uint8_t>(i % 4 * 16 + i / 4);
    }
    return made;
  }();
  return _mm512_permutexvar_epi8(_mm512_load_si512(order.data()), all);
}

// Four times four rows of 16 columns, whose rows are neighbours in memory; `bytes` of 16 exist.
JIT_PASSES_VNNI_INLINE void sixteenRows(
    const Columns& from, int64_t k, int64_t bytes, int64_t count, __m512i (&quads)[4]) {
  const auto lanes = static_cast<__mmask16>(firstLanes(std::min<int64_t>(bytes, 16)));
  const auto column = [&](int64_t n) JIT_PASSES_VNNI {
    return _mm_maskz_loadu_epi8(n < count ? lanes : __mmask16{0}, from.data + n * from.step + k);
  };
  for (int64_t i = 0; i < 4; ++i) {
    quads[i] = _mm512_castsi128_si512(column(i));
    quads[i] = _mm512_inserti32x4(quads[i], column(4 + i), 1);
    quads[i] = _mm512_inserti32x4(quads[i], column(8 + i), 2);
    quads[i] = _mm512_inserti32x4(quads[i], column(12 + i), 3);
  }
  transposeDwords(quads);
}

JIT_PASSES_VNNI void packVnni(
    const MatrixProduct& product, const PackedMatrix& form, int64_t block, const Columns& from, uint8_t* to) {
  const int64_t groups = form.groups(block);
  const __m512i ones = _mm512_set1_epi8(1);
  const int32_t z = product.b_zero_point - 128;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t count = std::min(kGroup, form.count(block) - group * kGroup);
    const Columns own{from.data + group * kGroup * from.step, from.step, from.stride};
    __m512i sums = _mm512_setzero_si512();
    uint8_t* at = to + 4 * kBlock + group * 64;
    // Rows that do not exist stay 0.
    const auto put = [&](__m512i codes, int64_t rows) JIT_PASSES_VNNI {
      const uint32_t signs = rows >= 4 ? 0x80808080U : 0x80808080U & ((1U << (8 * rows)) - 1);
      const __m512i weights = _mm512_xor_si512(codes, _mm512_set1_epi32(static_cast<int32_t>(signs)));
      sums = _mm512_dpbusd_epi32(sums, ones, weights);
      _mm512_store_si512(at, weights);
      at += groups * 64;
    };
    if (from.stride == 1) {
      for (int64_t k = 0; k < form.products; k += 16) {
        __m512i quads[4];
        sixteenRows(own, k, form.products - k, count, quads);
        for (int64_t i = 0; i < 4 && k + 4 * i < form.products; ++i) {
          put(quads[i], form.products - k - 4 * i);
        }
      }
    } else {
      const auto lanes = static_cast<__mmask16>(firstLanes(count));
      for (int64_t k = 0; k < form.products; k += 4) {
        put(fourRows(own, k, form.products - k, lanes), form.products - k);
      }
    }
    const __m512i whole = _mm512_set1_epi32(static_cast<int32_t>(form.products) * z);
    const __m512i start =
        _mm512_mullo_epi32(_mm512_sub_epi32(whole, sums), _mm512_set1_epi32(product.a_zero_point));
    _mm512_store_si512(to + group * 64, start);
  }
}

JIT_PASSES_VNNI int32_t sumOfCodes(const uint8_t* codes, int64_t count) {
  __m512i sums = _mm512_setzero_si512();
  for (int64_t i = 0; i < count; i += 64) {
    const auto lanes = static_cast<__mmask64>(firstLanes(count - i));
    const __m512i some = _mm512_maskz_loadu_epi8(lanes, codes + i);
    sums = _mm512_add_epi64(sums, _mm512_sad_epu8(some, _mm512_setzero_si512()));
  }
  return static_cast<int32_t>(_mm512_reduce_add_epi64(sums));
}

// sums: those of a tile, as convolution_tile.h leaves them; `of_rows` is added to those of each row.
JIT_PASSES_VNNI void storeProducts(
    const int32_t* sums, const int32_t (&of_rows)[kTileHalf][2], int64_t first, int64_t count,
    const MatrixProduct& product, const RowTile& tile) {
  const auto lanes = static_cast<__mmask32>(firstLanes(count));
  const __m512 multiplier = _mm512_set1_ps(product.multiplier), offset = _mm512_set1_ps(product.offset);
  const Rounding rounding = roundingTo(product.low, product.high);
  for (int64_t p = 0; p < tile.rows; ++p, sums += 2 * kBlock) {
    __m512 v[4];
    for (int i = 0; i < 4; ++i) {
      const __m512i sum =
          _mm512_add_epi32(_mm512_load_si512(sums + i * kGroup), _mm512_set1_epi32(of_rows[p][i / 2]));
      v[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), multiplier, offset);
    }
    __m512i codes = roundToCodes(v[0], v[1], v[2], v[3], rounding);
    if (product.table) {
      codes = lookUp(codes, loadTable(product.table));
    }
    const __m256i halves[2] = {_mm512_castsi512_si256(codes), _mm512_extracti64x4_epi64(codes, 1)};
    for (int i = 0; i < 2; ++i) {
      const Half& half = tile.halves[i];
      if (p >= half.skip) {
        _mm256_mask_storeu_epi8(half.out + p * tile.out_step + first, lanes, halves[i]);
      }
    }
  }
}

void multiplyVnni(
    const MatrixProduct& product, const PackedMatrix& form, const uint8_t* packed, const RowTile& tile) {
  const int32_t z = product.b_zero_point - 128;
  int32_t of_rows[kTileHalf][2];
  for (int64_t p = 0; p < tile.rows; ++p) {
    for (int i = 0; i < 2; ++i) {
      of_rows[p][i] = z ? -z * sumOfCodes(tile.halves[i].in + p * tile.in_step, form.products) : 0;
    }
  }
  const int64_t jumps[1] = {0};
  const Tile operands{{tile.halves[0].in, tile.halves[1].in}, tile.in_step, jumps, 1, form.quads};
  alignas(64) int32_t sums[kTileHalf * 2 * kBlock] = {};
  for (int64_t block = 0; block < form.blocks; ++block) {
    const uint8_t* of_block = packed + block * form.block_bytes;
    const auto* weights = reinterpret_cast<const int8_t*>(of_block + 4 * kBlock);
    multiplyTileFor(Gives::Sums, form.groups(block), tile.rows)(
        operands, 0, weights, weights, reinterpret_cast<const int32_t*>(of_block), sums);
    storeProducts(sums, of_rows, block * kBlock, form.count(block), product, tile);
  }
}

#else
constexpr auto packVnni = packPlain;
constexpr auto multiplyVnni = multiplyPlain;
#endif

// The rows of a matrix in `parts` of `half`, of which two make a tile; the last one overlaps the one before.
struct Rows {
  explicit Rows(int64_t count)
      : count(count),
        parts((count + kTileHalf - 1) / kTileHalf),
        half(parts ? (count + parts - 1) / parts : 0),
        tiles((parts + 1) / 2) {}

  int64_t count, parts, half, tiles;
};

// The image of a batch, where one may stand for all.
int64_t matrixOf(const Image& image, int64_t n, int64_t z, int64_t y) {
  const int64_t of_n = image.images == 1 ? 0 : n, of_z = image.depth == 1 ? 0 : z;
  return (of_n * image.depth + of_z) * image.height + (image.height == 1 ? 0 : y);
}

} // namespace

int64_t MatrixProduct::packedBytes(const Image& b) const {
  const PackedMatrix form(*this, b);
  return b.rows() * form.blocks * form.block_bytes;
}

int64_t MatrixProduct::packItems(const Image& b) const { return b.rows() * PackedMatrix(*this, b).blocks; }

void MatrixProduct::pack(const Image& b, uint8_t* packed, int64_t begin, int64_t end) const {
  const PackedMatrix matrix(*this, b);
  const auto run = form == Form::Vnni ? packVnni : packPlain;
  const int64_t step = transposed ? b.pixel : 1, stride = transposed ? 1 : b.pixel;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item % matrix.blocks;
    run(*this, matrix, block, {b.rowAt(item / matrix.blocks) + block * kBlock * step, step, stride},
        packed + item * matrix.block_bytes);
  }
}

int64_t MatrixProduct::items(const Image& out) const { return out.rows() * Rows(out.width).tiles; }

void MatrixProduct::run(
    const Image& a, const Image& b, const uint8_t* packed, const Image& out, int64_t begin,
    int64_t end) const {
  const PackedMatrix matrix(*this, b);
  const Rows rows(out.width);
  const auto multiply = form == Form::Vnni ? multiplyVnni : multiplyPlain;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t index = item / rows.tiles, first = item % rows.tiles * 2;
    const int64_t y = index % out.height, z = index / out.height % out.depth;
    const int64_t n = index / out.height / out.depth;
    const uint8_t* from = a.rowAt(matrixOf(a, n, z, y));
    RowTile tile{{}, rows.half, a.pixel, out.pixel};
    for (int64_t i = 0; i < 2; ++i) {
      // A second half that does not exist repeats the first one, and is not stored.
      const int64_t part = first + i < rows.parts ? first + i : first;
      const int64_t row = std::min(part * rows.half, rows.count - rows.half);
      tile.halves[i] = {
          from + row * a.pixel, out.at(n, z, y, row), part == first + i ? part * rows.half - row : rows.half};
    }
    multiply(*this, matrix, packed + matrixOf(b, n, z, y) * matrix.blocks * matrix.block_bytes, tile);
  }
}

} // namespace jit_passes::x86
