// Products of two activations for AVX-512 VNNI. Rows are the pixels of the convolution's tile.
//
// Packed columns: [block][four rows][column][4]. A register has 16 columns of four rows, both for dense rows and for
// dense columns in memory.
#include "matrix_product.h"

#include <array>

#include "convolution_tile.h"

#ifdef JIT_PASSES_HAS_VNNI

namespace jit_passes::x86 {
namespace {

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

} // namespace

JIT_PASSES_VNNI void packVnni(
    const MatrixProduct& product, const PackedMatrix& form, int64_t block, const Columns& from, uint8_t* to) {
  const int64_t groups = form.groups(block);
  const __m512i ones = _mm512_set1_epi8(1);
  const int32_t z = product.b_zero_point - 128;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t count = std::min(kGroup, form.count(block) - group * kGroup);
    const Columns own{from.data + group * kGroup * from.step, from.step, from.stride};
    __m512i sums = _mm512_setzero_si512();
    uint8_t* at = to + 4 * kBlockChannels + group * 64;
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
    for (uint8_t* end = to + 4 * kBlockChannels + group * 64 + form.quads * groups * 64; at < end;) {
      put(_mm512_setzero_si512(), 0);
    }
    const __m512i whole = _mm512_set1_epi32(static_cast<int32_t>(form.products) * z);
    const __m512i start =
        _mm512_mullo_epi32(_mm512_sub_epi32(whole, sums), _mm512_set1_epi32(product.a_zero_point));
    _mm512_store_si512(to + group * 64, start);
  }
}

namespace {

JIT_PASSES_VNNI int32_t sumOfCodes(const uint8_t* codes, int64_t count) {
  __m512i sums = _mm512_setzero_si512();
  for (int64_t i = 0; i < count; i += 64) {
    const auto lanes = static_cast<__mmask64>(firstLanes(count - i));
    const __m512i some = _mm512_maskz_loadu_epi8(lanes, codes + i);
    sums = _mm512_add_epi64(sums, _mm512_sad_epu8(some, _mm512_setzero_si512()));
  }
  return static_cast<int32_t>(_mm512_reduce_add_epi64(sums));
}

// `sums` are a tile's sums in the order of convolution_tile.h. `of_rows` is added to the sums of each row.
template <typename Shape>
JIT_PASSES_VNNI void storeProducts(
    const int32_t* sums, const int32_t (&of_rows)[Shape::kPixels][2], int64_t first, int64_t count,
    const MatrixProduct& product, const RowTile<Shape>& tile) {
  const auto lanes = static_cast<__mmask32>(firstLanes(count));
  const __m512 multiplier = _mm512_set1_ps(product.multiplier), offset = _mm512_set1_ps(product.offset);
  const Rounding rounding = roundingTo(product.range);
  for (int64_t p = 0; p < tile.rows; ++p, sums += 2 * kBlockChannels) {
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
      const RowPart& part = tile.parts[i];
      if (p >= part.skip) {
        _mm256_mask_storeu_epi8(part.out + p * tile.out_step + first, lanes, halves[i]);
      }
    }
  }
}

template <typename Sums>
void multiplyTileRows(
    const Sums& multiply, const MatrixProduct& product, const PackedMatrix& form, const uint8_t* packed,
    const RowTile<typename Sums::Shape>& tile) {
  using Shape = typename Sums::Shape;
  const int32_t z = product.b_zero_point - 128;
  int32_t of_rows[Shape::kPixels][2];
  for (int64_t p = 0; p < tile.rows; ++p) {
    for (int i = 0; i < 2; ++i) {
      of_rows[p][i] = z ? -z * sumOfCodes(tile.parts[i].in + p * tile.in_step, form.products) : 0;
    }
  }
  const int64_t jumps[1] = {0};
  const TileOf<Shape> operands{{tile.parts[0].in, tile.parts[1].in}, tile.in_step, jumps, 1, form.quads};
  alignas(64) int32_t sums[Shape::kPixels * 2 * kBlockChannels] = {};
  for (int64_t block = 0; block < form.blocks; ++block) {
    const uint8_t* of_block = packed + block * form.block_bytes;
    const auto* weights = reinterpret_cast<const int8_t*>(of_block + 4 * kBlockChannels);
    multiply(
        operands, tile.count, form.groups(block), tile.rows, 0, weights, weights,
        reinterpret_cast<const int32_t*>(of_block), sums);
    storeProducts<Shape>(sums, of_rows, block * kBlockChannels, form.count(block), product, tile);
  }
}

} // namespace

void multiplyVnni(
    const MatrixProduct& product, const PackedMatrix& form, const uint8_t* packed,
    const RowTile<TwoHalves>& tile) {
  multiplyTileRows(VnniSums(), product, form, packed, tile);
}

#ifdef JIT_PASSES_HAS_AMX
void multiplyAmx(
    const AmxSums& sums, const MatrixProduct& product, const PackedMatrix& form, const uint8_t* packed,
    const RowTile<TwoSixteens>& tile) {
  multiplyTileRows(sums, product, form, packed, tile);
}
#endif

} // namespace jit_passes::x86

#else

namespace jit_passes::x86 {

void packVnni(const MatrixProduct&, const PackedMatrix&, int64_t, const Columns&, uint8_t*) {}
void multiplyVnni(const MatrixProduct&, const PackedMatrix&, const uint8_t*, const RowTile<TwoHalves>&) {}

} // namespace jit_passes::x86

#endif
