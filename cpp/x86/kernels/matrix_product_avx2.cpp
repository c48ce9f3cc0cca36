// Products of two activations for AVX-VNNI and for AVX2 alone. Rows are the pixels of the convolution's tile.
//
// Packed columns: [block][16 columns][four rows][column][4] for AVX-VNNI, and [block][16 columns][two
// rows][column][2] for AVX2. AVX2 widens rows of the left operand once for all columns.
#include "matrix_product.h"

#include "convolution_tile_avx2.h"
#include "plain.h"

#ifdef JIT_PASSES_HAS_AVX2

namespace jit_passes::x86 {
namespace {

// Rows of the left operand are widened whole.
static_assert((kMostCodeProducts + 3) / 4 * 4 <= kMostWidened);

// Rows `k` to `k + 3` of 16 neighbouring columns; `rows` of them exist: four bytes of each column.
JIT_PASSES_AVX2_INLINE void fourRowsOfSixteen(
    const Columns& from, int64_t k, int64_t rows, __m128i (&columns)[4]) {
  __m128i row[4];
  for (int64_t i = 0; i < 4; ++i) {
    row[i] = i < rows ? load128(from.data + (k + i) * from.stride) : _mm_setzero_si128();
  }
  const __m128i ab0 = _mm_unpacklo_epi8(row[0], row[1]), ab1 = _mm_unpackhi_epi8(row[0], row[1]);
  const __m128i cd0 = _mm_unpacklo_epi8(row[2], row[3]), cd1 = _mm_unpackhi_epi8(row[2], row[3]);
  columns[0] = _mm_unpacklo_epi16(ab0, cd0), columns[1] = _mm_unpackhi_epi16(ab0, cd0);
  columns[2] = _mm_unpacklo_epi16(ab1, cd1), columns[3] = _mm_unpackhi_epi16(ab1, cd1);
}

// Rows `k` to `k + 15`; `rows` of them exist, of columns whose rows are neighbours: [four rows][four columns].
JIT_PASSES_AVX2_INLINE void sixteenRowsOfFour(
    const Columns& from, int64_t k, int64_t rows, int64_t first, int64_t count, __m128i (&quads)[4]) {
  const __m128i mask = _mm256_castsi256_si128(firstBytes(rows));
  __m128i t[4];
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t column = std::min(first + i, count - 1); // missing columns are not stored
    t[i] = _mm_and_si128(mask, load128(from.data + column * from.step + k));
  }
  const __m128i a = _mm_unpacklo_epi32(t[0], t[1]), b = _mm_unpackhi_epi32(t[0], t[1]);
  const __m128i c = _mm_unpacklo_epi32(t[2], t[3]), d = _mm_unpackhi_epi32(t[2], t[3]);
  quads[0] = _mm_unpacklo_epi64(a, c), quads[1] = _mm_unpackhi_epi64(a, c);
  quads[2] = _mm_unpacklo_epi64(b, d), quads[3] = _mm_unpackhi_epi64(b, d);
}

// Stores four rows of 16 columns as int8, and adds them to the sums of columns.
template <bool kVnni>
class ColumnsOut {
 public:
  JIT_PASSES_AVX2 explicit ColumnsOut(uint8_t* to) : to_(reinterpret_cast<__m256i*>(to)) {
    sums[0] = sums[1] = _mm256_setzero_si256();
  }

  // Rows that do not exist stay 0.
  JIT_PASSES_AVX2_INLINE void put(const __m128i (&columns)[4], int64_t rows) {
    const uint32_t signs = rows >= 4 ? 0x80808080U : 0x80808080U & ((1U << (8 * rows)) - 1);
    const __m256i sign = _mm256_set1_epi32(static_cast<int32_t>(signs));
    __m256i all[2];
    for (int i = 0; i < 2; ++i) {
      const __m256i codes =
          _mm256_inserti128_si256(_mm256_castsi128_si256(columns[2 * i]), columns[2 * i + 1], 1);
      all[i] = _mm256_xor_si256(codes, sign);
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), all[i]); // at most 256
      sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    if constexpr (!kVnni) {
      takePairs(all);
    }
    _mm256_store_si256(to_++, all[0]);
    _mm256_store_si256(to_++, all[1]);
  }

  __m256i sums[2];

 private:
  // From [column][4] to [2][column][2].
  JIT_PASSES_AVX2_INLINE static void takePairs(__m256i (&all)[2]) {
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i a = _mm256_shuffle_epi8(all[0], order), b = _mm256_shuffle_epi8(all[1], order);
    all[0] = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(a, b), 0b11011000);
    all[1] = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(a, b), 0b11011000);
  }

  __m256i* to_;
};

template <bool kVnni>
JIT_PASSES_AVX2 void packGroup(
    const MatrixProduct& product, const PackedMatrix& form, const Columns& from, int64_t count,
    int32_t* start, uint8_t* to) {
  ColumnsOut<kVnni> out(to);
  if (from.stride == 1) {
    for (int64_t k = 0; k < form.products; k += 16) {
      __m128i quads[4][4]; // [columns][rows]
      for (int64_t i = 0; i < 4; ++i) {
        sixteenRowsOfFour(from, k, form.products - k, 4 * i, count, quads[i]);
      }
      for (int64_t i = 0; i < 4 && k + 4 * i < form.products; ++i) {
        out.put({quads[0][i], quads[1][i], quads[2][i], quads[3][i]}, form.products - k - 4 * i);
      }
    }
  } else {
    for (int64_t k = 0; k < form.products; k += 4) {
      __m128i columns[4];
      fourRowsOfSixteen(from, k, form.products - k, columns);
      out.put(columns, form.products - k);
    }
  }
  const int32_t z = product.b_zero_point - 128;
  const __m256i whole = _mm256_set1_epi32(static_cast<int32_t>(form.products) * z);
  for (int i = 0; i < 2; ++i) {
    const __m256i starts =
        _mm256_mullo_epi32(_mm256_sub_epi32(whole, out.sums[i]), _mm256_set1_epi32(product.a_zero_point));
    _mm256_store_si256(reinterpret_cast<__m256i*>(start) + i, starts);
  }
}

JIT_PASSES_AVX2 int32_t sumOfRow(const uint8_t* codes, int64_t count) {
  __m256i sums = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += 32) {
    const __m256i some = _mm256_and_si256(firstBytes(count - i), load256(codes + i));
    sums = _mm256_add_epi64(sums, _mm256_sad_epu8(some, _mm256_setzero_si256()));
  }
  const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  return static_cast<int32_t>(_mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1));
}

// `of_rows` is added to the sums of each row.
JIT_PASSES_AVX2 void storeSixRows(
    const int32_t* sums, const int32_t* of_rows, int64_t first, int64_t count, const MatrixProduct& product,
    const RowTile<SixPixels>& tile) {
  const __m256 multiplier = _mm256_set1_ps(product.multiplier), offset = _mm256_set1_ps(product.offset);
  const Rounding256 rounding(product.range);
  const uint8_t* const table = product.table;
  for (int64_t p = 0; p < tile.count; ++p, sums += kBlockChannels) {
    const __m256i of_row = _mm256_set1_epi32(of_rows[p]);
    __m256 v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i sum = _mm256_add_epi32(load256(sums + 8 * i), of_row);
      v[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), multiplier, offset);
    }
    putCodes(tile.parts[p].out + first, v, rounding, count, table);
  }
}

template <bool kVnni>
void multiplySixRows(
    const MatrixProduct& product, const PackedMatrix& form, const uint8_t* packed,
    const RowTile<SixPixels>& tile) {
  const int32_t z = product.b_zero_point - 128;
  int32_t of_rows[SixPixels::kParts];
  const int64_t jumps[1] = {0};
  TileOf<SixPixels> operands{{}, 0, jumps, 1, form.quads};
  for (int64_t p = 0; p < SixPixels::kParts; ++p) {
    operands.part[p] = tile.parts[p].in;
    of_rows[p] = z && p < tile.count ? -z * sumOfRow(tile.parts[p].in, form.products) : 0;
  }
  alignas(64) int32_t sums[SixPixels::kParts * kBlockChannels] = {};
  SixProducts<kVnni> products;
  for (int64_t block = 0; block < form.blocks; ++block) {
    const uint8_t* of_block = packed + block * form.block_bytes;
    const auto* weights = reinterpret_cast<const int8_t*>(of_block + 4 * kBlockChannels);
    products.multiply(
        operands, tile.count, 0, 2 * form.groups(block), weights, weights,
        reinterpret_cast<const int32_t*>(of_block), sums);
    storeSixRows(sums, of_rows, block * kBlockChannels, form.count(block), product, tile);
  }
}

} // namespace

void packAvx2(
    const MatrixProduct& product, const PackedMatrix& form, int64_t block, const Columns& from, uint8_t* to) {
  for (int64_t group = 0; group < form.groups(block); ++group) {
    const int64_t count = std::min(kGroup, form.count(block) - group * kGroup);
    const Columns own{from.data + group * kGroup * from.step, from.step, from.stride};
    auto* start = reinterpret_cast<int32_t*>(to) + group * kGroup;
    uint8_t* at = to + 4 * kBlockChannels + group * 4 * kGroup * form.quads;
    product.form == Form::AvxVnni ? packGroup<true>(product, form, own, count, start, at)
                                  : packGroup<false>(product, form, own, count, start, at);
  }
}

void multiplyAvx2(
    const MatrixProduct& product, const PackedMatrix& form, const uint8_t* packed,
    const RowTile<SixPixels>& tile) {
  product.form == Form::AvxVnni ? multiplySixRows<true>(product, form, packed, tile)
                                : multiplySixRows<false>(product, form, packed, tile);
}

} // namespace jit_passes::x86

#else

namespace jit_passes::x86 {

void packAvx2(const MatrixProduct&, const PackedMatrix&, int64_t, const Columns&, uint8_t*) {}
void multiplyAvx2(const MatrixProduct&, const PackedMatrix&, const uint8_t*, const RowTile<SixPixels>&) {}

} // namespace jit_passes::x86

#endif
