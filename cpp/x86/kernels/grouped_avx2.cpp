// Linear layers with a scale for each group of inputs, for registers of 256 bits with eight outputs each.
#include <cstring>

#include "avx2.h"
#include "grouped_tile.h"

#ifdef JIT_PASSES_HAS_AVX2

namespace jit_passes::x86 {
namespace {

JIT_PASSES_AVX2_INLINE __m256i broadcastQuad(const uint8_t* codes) {
  int32_t quad;
  std::memcpy(&quad, codes, sizeof(quad));
  return _mm256_set1_epi32(quad);
}

// The two halves of bytes, as int8.
struct Halves256 {
  JIT_PASSES_AVX2 Halves256()
      : mask(_mm256_set1_epi8(15)),
        codes(_mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1))) {}

  JIT_PASSES_AVX2_INLINE __m256i lower(__m256i bytes) const { return _mm256_and_si256(bytes, mask); }
  JIT_PASSES_AVX2_INLINE __m256i upper(__m256i bytes) const { return lower(_mm256_srli_epi16(bytes, 4)); }
  JIT_PASSES_AVX2_INLINE __m256i asCodes(__m256i halves) const { return _mm256_shuffle_epi8(codes, halves); }

  __m256i mask, codes;
};

// The sums of products of a step. For weights of 4 bits, int16 can hold them: two products of 255 and -8, eight
// times; or of 255 and 15, four times.
template <int kRows, int kBits>
struct CodesStep256;

template <int kRows>
struct CodesStep256<kRows, 4> {
  Halves256 halves;

  JIT_PASSES_AVX2_INLINE void add(
      const uint8_t* step, const GroupedRows<uint8_t>& rows, int64_t first, __m256i (&sums)[kRows][2]) const {
    __m256i pairs[kRows][2] = {};
#pragma GCC unroll 4
    for (int octet = 0; octet < 4; ++octet) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256i bytes = load256(step + 64 * octet + 32 * h);
        const __m256i lower = halves.asCodes(halves.lower(bytes));
        const __m256i upper = halves.asCodes(halves.upper(bytes));
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const uint8_t* x = rows.row[r] + first + 8 * octet;
          const __m256i products = _mm256_add_epi16(
              _mm256_maddubs_epi16(broadcastQuad(x), lower),
              _mm256_maddubs_epi16(broadcastQuad(x + 4), upper));
          pairs[r][h] = _mm256_add_epi16(pairs[r][h], products);
        }
      }
    }
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        sums[r][h] = _mm256_add_epi32(sums[r][h], _mm256_madd_epi16(pairs[r][h], ones));
      }
    }
  }
};

template <int kRows>
struct CodesStep256<kRows, 8> {
  Halves256 halves;

  JIT_PASSES_AVX2_INLINE void add(
      const uint8_t* step, const GroupedRows<uint8_t>& rows, int64_t first, __m256i (&sums)[kRows][2]) const {
    const __m256i ones = _mm256_set1_epi16(1), sixteens = _mm256_set1_epi16(16);
    for (int half = 0; half < 2; ++half, step += 256, first += 16) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        __m256i lower[kRows] = {}, upper[kRows] = {};
#pragma GCC unroll 4
        for (int quad = 0; quad < 4; ++quad) {
          const __m256i bytes = load256(step + 64 * quad + 32 * h);
          const __m256i low = halves.lower(bytes), high = halves.asCodes(halves.upper(bytes));
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const __m256i x = broadcastQuad(rows.row[r] + first + 4 * quad);
            lower[r] = _mm256_add_epi16(lower[r], _mm256_maddubs_epi16(x, low));
            upper[r] = _mm256_add_epi16(upper[r], _mm256_maddubs_epi16(x, high));
          }
        }
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m256i both =
              _mm256_add_epi32(_mm256_madd_epi16(lower[r], ones), _mm256_madd_epi16(upper[r], sixteens));
          sums[r][h] = _mm256_add_epi32(sums[r][h], both);
        }
      }
    }
  }
};

template <int kRows, int kBits>
JIT_PASSES_AVX2 void codesTile256(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<uint8_t>& rows, float* a) {
  const CodesStep256<kRows, kBits> step;
  __m256 all[kRows][2] = {};
  const uint8_t* at = block + kGroupedHeader;
  int64_t first = 0;
  for (int64_t group = shape.groups(); group > 0; --group) {
    const auto* scales = reinterpret_cast<const float*>(at);
    at += 64;
    __m256i sums[kRows][2] = {};
    for (int64_t left = shape.steps(); left > 0; --left, at += 64 * kBits, first += 32) {
      step.add(at, rows, first, sums);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        all[r][h] =
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r][h]), _mm256_loadu_ps(scales + 8 * h), all[r][h]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    _mm256_storeu_ps(a + 16 * r, all[r][0]);
    _mm256_storeu_ps(a + 16 * r + 8, all[r][1]);
  }
}

// The codes of an input of an octet, for eight outputs that begin at `half` of a step.
template <int kBits>
JIT_PASSES_AVX2_INLINE __m256 weightsOf(const uint8_t* half, int octet, int input) {
  const int run = kBits == 4 ? octet : 2 * octet + input / 4;
  const int begin = 8 * (input % 4) + (kBits == 4 ? input / 4 * 4 : 0);
  const __m256i top = _mm256_slli_epi32(load256(half + 64 * run), 32 - kBits - begin);
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 32 - kBits));
}

template <int kRows, int kBits>
JIT_PASSES_AVX2 void floatsTile256(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<float>& rows, float* a) {
  __m256 all[kRows][2] = {};
  const uint8_t* at = block + kGroupedHeader;
  StepOfFloats<kRows> x;
  for (int64_t first = 0; first < shape.inputs; first += shape.group, at += shape.groupBytes()) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m256 parts[kRows][4] = {};
      const uint8_t* half = at + 64 + 32 * h;
      for (int64_t own = 0; own < shape.group; own += 32, half += 64 * kBits) {
        x.at(rows, first + own, shape.group - own);
#pragma GCC unroll 8
        for (int input = 0; input < 8; ++input) {
#pragma GCC unroll 4
          for (int octet = 0; octet < 4; ++octet) {
            const __m256 weights = weightsOf<kBits>(half, octet, input);
#pragma GCC unroll 2
            for (int r = 0; r < kRows; ++r) {
              const __m256 number = _mm256_broadcast_ss(x.row[r] + 8 * octet + input);
              parts[r][octet] = _mm256_fmadd_ps(weights, number, parts[r][octet]);
            }
          }
        }
      }
      const __m256 scales = _mm256_loadu_ps(reinterpret_cast<const float*>(at) + 8 * h);
      for (int r = 0; r < kRows; ++r) {
        const __m256 sum =
            _mm256_add_ps(_mm256_add_ps(parts[r][0], parts[r][1]), _mm256_add_ps(parts[r][2], parts[r][3]));
        all[r][h] = _mm256_fmadd_ps(sum, scales, all[r][h]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    _mm256_storeu_ps(a + 16 * r, all[r][0]);
    _mm256_storeu_ps(a + 16 * r + 8, all[r][1]);
  }
}

// The weights of a step in float32, [32 inputs][16 outputs].
template <int kBits>
JIT_PASSES_AVX2_INLINE void decodeStep(const uint8_t* step, float* weights) {
#pragma GCC unroll 4
  for (int octet = 0; octet < 4; ++octet) {
#pragma GCC unroll 8
    for (int input = 0; input < 8; ++input, weights += 16) {
      _mm256_store_ps(weights, weightsOf<kBits>(step, octet, input));
      _mm256_store_ps(weights + 8, weightsOf<kBits>(step + 32, octet, input));
    }
  }
}

constexpr int64_t kStepsTogether = 4; // steps whose weights are decoded at a time

// Adds the products of the octets `first` and first + 1 to one part each, for both halves of the outputs. Fetches
// the rows that follow `x`, if asked to.
template <int kRows, bool kFetches>
JIT_PASSES_AVX2_INLINE void addOctets256(
    const DecodedSteps& decoded, const float* const* x, int first, __m256 (&sums)[kRows][2][2]) {
  const float* row[kRows];
  for (int r = 0; r < kRows; ++r) {
    row[r] = x[r] + 8 * first;
  }
  const float* weights = decoded.weights + 128 * first;
  for (int64_t step = 0; step < decoded.steps; ++step, weights += 512) {
    if constexpr (kFetches) {
#pragma GCC unroll 3
      for (int r = 0; r < kRows; ++r) { // 64 bytes of each row
        _mm_prefetch(reinterpret_cast<const char*>(x[kRows + r] + 32 * step + 8 * first), _MM_HINT_T0);
      }
    }
#pragma GCC unroll 8
    for (int input = 0; input < 8; ++input) {
#pragma GCC unroll 2
      for (int octet = 0; octet < 2; ++octet) {
        const float* at = weights + 128 * octet + 16 * input;
        const __m256 lower = _mm256_load_ps(at), upper = _mm256_load_ps(at + 8);
#pragma GCC unroll 3
        for (int r = 0; r < kRows; ++r) {
          const __m256 number = _mm256_broadcast_ss(row[r] + 8 * octet + input);
          sums[r][octet][0] = _mm256_fmadd_ps(lower, number, sums[r][octet][0]);
          sums[r][octet][1] = _mm256_fmadd_ps(upper, number, sums[r][octet][1]);
        }
      }
    }
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) {
      row[r] += 32;
    }
  }
}

// Parts of sums stay in `parts`, [rows][4 octets][16 outputs], until all steps of their group are done. The parts
// are then added, scaled, and added to `a`. With two octets at a time, products of three rows need 12 registers.
template <int kRows, bool kFetches = false>
JIT_PASSES_AVX2 void addDecoded(
    const DecodedSteps& decoded, const float* const* x, const float* scales, float* parts, float* a) {
  for (int first = 0; first < 4; first += 2) {
    __m256 sums[kRows][2][2] = {};
    if (!decoded.first) {
#pragma GCC unroll 12
      for (int i = 0; i < kRows * 4; ++i) {
        sums[i / 4][i / 2 % 2][i % 2] = _mm256_load_ps(parts + 64 * (i / 4) + 16 * first + 8 * (i % 4));
      }
    }
    addOctets256<kRows, kFetches>(decoded, x, first, sums);
    if (!decoded.last) {
#pragma GCC unroll 12
      for (int i = 0; i < kRows * 4; ++i) {
        _mm256_store_ps(parts + 64 * (i / 4) + 16 * first + 8 * (i % 4), sums[i / 4][i / 2 % 2][i % 2]);
      }
      continue;
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows * 2; ++i) {
      const int r = i / 2, h = i % 2;
      const __m256 both = _mm256_add_ps(sums[r][0][h], sums[r][1][h]);
      float* half = parts + 64 * r + 8 * h; // becomes the sum of the parts
      if (first == 0) {
        _mm256_store_ps(half, both);
        continue;
      }
      const __m256 sum = _mm256_add_ps(_mm256_load_ps(half), both);
      float* to = a + 16 * r + 8 * h;
      _mm256_storeu_ps(to, _mm256_fmadd_ps(sum, _mm256_loadu_ps(scales + 8 * h), _mm256_loadu_ps(to)));
    }
  }
}

// Decodes the weights of some steps to float32, which many rows then use one after the other.
template <int kBits>
JIT_PASSES_AVX2 void decodedTile256(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<float>& rows, float* a,
    RowsDone done) {
  alignas(32) float weights[kStepsTogether * 512], parts[kGroupedRows<float> * 64];
  StepOfFloats<kGroupedRows<float>> x;
  const bool fetches = fetchesRows(shape, rows.count);
  std::memset(a, 0, rows.count * 16 * sizeof(float));
  const uint8_t* at = block + kGroupedHeader;
  for (int64_t first = 0; first < shape.inputs; first += shape.group, at += shape.groupBytes()) {
    const auto* scales = reinterpret_cast<const float*>(at);
    const uint8_t* step = at + 64;
    for (int64_t own = 0, steps = 0; own < shape.group; own += 32 * steps) {
      steps = std::clamp<int64_t>((shape.group - own) / 32, 1, kStepsTogether);
      for (int64_t i = 0; i < steps; ++i, step += shape.stepBytes()) {
        decodeStep<kBits>(step, weights + 512 * i);
      }
      x.at(rows, first + own, shape.group - own);
      const DecodedSteps decoded{weights, steps, own == 0, own + 32 * steps >= shape.group};
      int64_t r = 0;
      for (; fetches && r + 6 <= rows.count; r += 3) {
        addDecoded<3, true>(decoded, x.row + r, scales, parts + 64 * r, a + 16 * r);
      }
      for (; r + 3 <= rows.count; r += 3) {
        addDecoded<3>(decoded, x.row + r, scales, parts + 64 * r, a + 16 * r);
      }
      if (r < rows.count) {
        const auto add = rows.count - r == 2 ? addDecoded<2> : addDecoded<1>;
        add(decoded, x.row + r, scales, parts + 64 * r, a + 16 * r);
      }
    }
  }
  done(0, rows.count);
}

template <int kRows>
void codesTileOf(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<uint8_t>& rows, float* a) {
  shape.bits == 4 ? codesTile256<kRows, 4>(shape, block, rows, a)
                  : codesTile256<kRows, 8>(shape, block, rows, a);
}

template <int kRows>
void floatsTileOf(const GroupedShape& shape, const uint8_t* block, const GroupedRows<float>& rows, float* a) {
  shape.bits == 4 ? floatsTile256<kRows, 4>(shape, block, rows, a)
                  : floatsTile256<kRows, 8>(shape, block, rows, a);
}

} // namespace

void groupedCodesAvx2(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<uint8_t>& rows, float* a,
    RowsDone done) {
  inTiles<uint8_t>(
      {codesTileOf<1>, codesTileOf<2>, codesTileOf<3>, codesTileOf<4>}, shape, block, rows, a, done);
}

void groupedFloatsAvx2(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<float>& rows, float* a,
    RowsDone done) {
  constexpr int64_t kFewToDecode = 5;
  if (rows.count >= kFewToDecode) {
    const auto decoded = shape.bits == 4 ? decodedTile256<4> : decodedTile256<8>;
    return decoded(shape, block, rows, a, done);
  }
  inTiles<float>(
      {floatsTileOf<1>, floatsTileOf<2>}, shape, block, rows, a,
      done); // there are not enough registers for more
}

} // namespace jit_passes::x86

#else

namespace jit_passes::x86 {

void groupedCodesAvx2(const GroupedShape&, const uint8_t*, const GroupedRows<uint8_t>&, float*, RowsDone) {}
void groupedFloatsAvx2(const GroupedShape&, const uint8_t*, const GroupedRows<float>&, float*, RowsDone) {}

} // namespace jit_passes::x86

#endif
