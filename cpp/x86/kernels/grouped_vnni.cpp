// Linear layers with a scale for each group of inputs, for AVX-512 with 16 outputs in a register.
#include <cstring>

#include "grouped_steps.h"
#include "grouped_tile.h"

#ifdef JIT_PASSES_HAS_VNNI

namespace jit_passes::x86 {
namespace {

JIT_PASSES_VNNI_INLINE __m512i quadOf(const uint8_t* codes) {
  int32_t quad;
  std::memcpy(&quad, codes, sizeof(quad));
  return _mm512_set1_epi32(quad);
}

// With one row, reading the weights takes all of the time. The processor prefetches only within a page of 4 KB, so
// this prefetches beyond it. A prefetch of an invalid address has no effect.
template <int kRows>
JIT_PASSES_VNNI_INLINE void fetchAhead(const uint8_t* weights) {
  constexpr int64_t kAhead = 4096;
  if constexpr (kRows == 1) {
    _mm_prefetch(reinterpret_cast<const char*>(weights + kAhead), _MM_HINT_T0);
  }
}

// The sums of products of a step, in two parts; instructions add to them in turn.
template <int kRows, int kBits>
JIT_PASSES_VNNI_INLINE void addCodes(
    const uint8_t* step, const GroupedRows<uint8_t>& rows, int64_t first, __m512i (&sums)[kRows][2]) {
  if constexpr (kBits == 4) {
#pragma GCC unroll 4
    for (int octet = 0; octet < 4; ++octet) {
      const auto [lower, upper] = octetOf(step, octet);
      fetchAhead<kRows>(step + 64 * octet);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const uint8_t* x = rows.row[r] + first + 8 * octet;
        sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], quadOf(x), lower);
        sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], quadOf(x + 4), upper);
      }
    }
  } else {
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; ++quad) {
      const __m512i codes = _mm512_loadu_si512(step + 64 * quad);
      fetchAhead<kRows>(step + 64 * quad);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        sums[r][quad % 2] =
            _mm512_dpbusd_epi32(sums[r][quad % 2], quadOf(rows.row[r] + first + 4 * quad), codes);
      }
    }
  }
}

template <int kRows, int kBits>
JIT_PASSES_VNNI void codesTile512(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<uint8_t>& rows, float* a) {
  __m512 all[kRows] = {};
  const uint8_t* at = block + kGroupedHeader;
  int64_t first = 0;
  for (int64_t group = shape.groups(); group > 0; --group) {
    const __m512 scales = _mm512_loadu_ps(at);
    at += 64;
    __m512i sums[kRows][2] = {};
    for (int64_t left = shape.steps(); left > 0; --left, at += 64 * kBits, first += 32) {
      addCodes<kRows, kBits>(at, rows, first, sums);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      all[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(sums[r][0], sums[r][1])), scales, all[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(a + 16 * r, all[r]);
  }
}

// Groups whose codes have 8 bits, of one block or of two.
template <int kBlocks>
struct GroupsOfBytes {
  const uint8_t *codes[kBlocks], *scales[kBlocks];
  int64_t count, steps, codes_apart, scales_apart; // bytes from one group to the next
  bool are_first;                                  // of their row, so their sums begin with 0
};

// Adds the sums of some groups to `a`, [blocks][all rows][16]. Six rows and two blocks need 26 registers, and two
// thirds as many loads as products. If asked to, fetches 512 bytes for each step into the second cache, from `next`
// on: with few rows, waiting for weights takes most of the time.
template <int kRows, int kBlocks, bool kFetches>
JIT_PASSES_VNNI void addGroups512(
    const GroupsOfBytes<kBlocks>& groups, const uint8_t* const* x, int64_t first, int64_t rows,
    const uint8_t* next, float* a) {
  __m512 all[kRows][kBlocks];
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kBlocks; ++i) {
    const float* before = a + 16 * (i % kBlocks * rows + i / kBlocks);
    all[i / kBlocks][i % kBlocks] = groups.are_first ? _mm512_setzero_ps() : _mm512_load_ps(before);
  }
  for (int64_t group = 0; group < groups.count; ++group) {
    __m512i sums[kRows][kBlocks] = {};
    int64_t at = group * groups.codes_apart;
    for (int64_t step = 0; step < groups.steps; ++step, first += 32, at += kDecodedStep, next += 512) {
#pragma GCC unroll 8
      for (int quad = 0; quad < 8; ++quad) {
        if constexpr (kFetches) {
          _mm_prefetch(reinterpret_cast<const char*>(next + 64 * quad), _MM_HINT_T1);
        }
        __m512i codes[kBlocks];
#pragma GCC unroll 2
        for (int block = 0; block < kBlocks; ++block) {
          codes[block] = _mm512_loadu_si512(groups.codes[block] + at + 64 * quad);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m512i numbers = quadOf(x[r] + first + 4 * quad);
#pragma GCC unroll 2
          for (int block = 0; block < kBlocks; ++block) {
            sums[r][block] = _mm512_dpbusd_epi32(sums[r][block], numbers, codes[block]);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int block = 0; block < kBlocks; ++block) {
      const __m512 scales = _mm512_loadu_ps(groups.scales[block] + group * groups.scales_apart);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        all[r][block] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][block]), scales, all[r][block]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kBlocks; ++i) {
    _mm512_store_ps(a + 16 * (i % kBlocks * rows + i / kBlocks), all[i / kBlocks][i % kBlocks]);
  }
}

// Decodes the weights of some groups to 8 bits, which many rows then use one after the other.
template <int kBits, int kBlocks>
JIT_PASSES_VNNI void codesOfMany512(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<uint8_t>& rows, float* a,
    RowsDone done) {
  constexpr int kMost = 6;
  using Add = void (*)(
      const GroupsOfBytes<kBlocks>&, const uint8_t* const*, int64_t, int64_t, const uint8_t*, float*);
  constexpr Add kFetching[] = {addGroups512<1, kBlocks, true>, addGroups512<2, kBlocks, true>,
                               addGroups512<3, kBlocks, true>, addGroups512<4, kBlocks, true>,
                               addGroups512<5, kBlocks, true>, addGroups512<6, kBlocks, true>};
  constexpr Add kOnly[] = {addGroups512<1, kBlocks, false>, addGroups512<2, kBlocks, false>,
                           addGroups512<3, kBlocks, false>, addGroups512<4, kBlocks, false>,
                           addGroups512<5, kBlocks, false>, addGroups512<6, kBlocks, false>};
  alignas(64) uint8_t decoded[kBits == 4 ? kBlocks * kCodesAhead512 * kDecodedStep : 1];
  const int64_t steps = shape.steps(), all = shape.groups(),
                together = std::max<int64_t>(1, kCodesAhead512 / steps);
  for (int64_t first = 0; first < all; first += together) {
    GroupsOfBytes<kBlocks> groups{
        {}, {}, std::min(together, all - first), steps, 0, shape.groupBytes(), first == 0};
    groups.codes_apart = kBits == 4 ? steps * kDecodedStep : groups.scales_apart;
    for (int64_t b = 0; b < kBlocks; ++b) {
      groups.scales[b] = block + kGroupedHeader + b * shape.blockBytes() + first * shape.groupBytes();
      groups.codes[b] = groups.scales[b] + 64;
      if constexpr (kBits == 4) {
        uint8_t* to = decoded + b * kCodesAhead512 * kDecodedStep;
        for (int64_t i = 0; i < groups.count * steps; ++i) {
          const uint8_t* group = groups.codes[b] + i / steps * shape.groupBytes();
          decodeStepToBytes(group + i % steps * shape.stepBytes(), to + i * kDecodedStep);
        }
        groups.codes[b] = to;
      }
    }
    // The next groups, of these blocks or of the next ones.
    const bool more = first + together < all;
    const int64_t bytes = together * shape.groupBytes();
    const uint8_t* next = more ? groups.scales[0] + bytes : block + kBlocks * shape.blockBytes();
    int64_t fetched = 0;
    for (int64_t r = 0, count; r < rows.count; r += count, fetched += 512 * steps * groups.count) {
      // The last two tiles share their rows, since sums of few rows wait for one another.
      const int64_t left = rows.count - r;
      count = left >= 2 * kMost ? kMost : left > kMost ? (left + 1) / 2 : left;
      const uint8_t* from = next + fetched / bytes * shape.blockBytes() + fetched % bytes;
      const Add add = (fetched < kBlocks * bytes ? kFetching : kOnly)[count - 1];
      add(groups, rows.row + r, 32 * steps * first, rows.count, from, a + 16 * r);
      if (!more) {
        done(r, count);
      }
    }
  }
}

// The codes of an input of an octet, for 16 outputs.
template <int kBits>
JIT_PASSES_VNNI_INLINE __m512 weightsOf512(const uint8_t* step, int octet, int input) {
  if constexpr (kBits == 4) { // only the lowest four bits of an index are used
    const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m512i bytes = _mm512_loadu_si512(step + 64 * octet);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 8 * (input % 4) + input / 4 * 4), codes);
  } else {
    const __m512i bytes = _mm512_loadu_si512(step + 64 * (2 * octet + input / 4));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(bytes, 24 - 8 * (input % 4)), 24));
  }
}

template <int kRows, int kBits>
JIT_PASSES_VNNI void floatsTile512(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<float>& rows, float* a) {
  __m512 all[kRows] = {};
  const uint8_t* at = block + kGroupedHeader;
  StepOfFloats<kRows> x;
  for (int64_t first = 0; first < shape.inputs; first += shape.group, at += shape.groupBytes()) {
    __m512 parts[kRows][4] = {};
    const uint8_t* step = at + 64;
    for (int64_t own = 0; own < shape.group; own += 32, step += 64 * kBits) {
      x.at(rows, first + own, shape.group - own);
#pragma GCC unroll 8
      for (int line = 0; line < kBits; ++line) {
        fetchAhead<kRows>(step + 64 * line);
      }
#pragma GCC unroll 8
      for (int input = 0; input < 8; ++input) {
#pragma GCC unroll 4
        for (int octet = 0; octet < 4; ++octet) {
          const __m512 weights = weightsOf512<kBits>(step, octet, input);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const __m512 number = _mm512_set1_ps(x.row[r][8 * octet + input]);
            parts[r][octet] = _mm512_fmadd_ps(weights, number, parts[r][octet]);
          }
        }
      }
    }
    const __m512 scales = _mm512_loadu_ps(at);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512 sum =
          _mm512_add_ps(_mm512_add_ps(parts[r][0], parts[r][1]), _mm512_add_ps(parts[r][2], parts[r][3]));
      all[r] = _mm512_fmadd_ps(sum, scales, all[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(a + 16 * r, all[r]);
  }
}

constexpr int64_t kStepsAhead = 4; // steps whose weights are decoded at a time

// The weights of a step in float32, [32 inputs][16 outputs].
template <int kBits>
JIT_PASSES_VNNI_INLINE void decodeStep512(const uint8_t* step, float* weights) {
#pragma GCC unroll 4
  for (int octet = 0; octet < 4; ++octet) {
#pragma GCC unroll 8
    for (int input = 0; input < 8; ++input, weights += 16) {
      _mm512_store_ps(weights, weightsOf512<kBits>(step, octet, input));
    }
  }
}

// Adds the products of the octets `first` and first + 1 to one part each. Fetches the rows that follow `x`,
// if asked to.
template <int kRows, int kBlocks, bool kFetches>
JIT_PASSES_VNNI_INLINE void addOctets512(
    const DecodedSteps& decoded, const float* const* x, int first, __m512 (&sums)[kRows][kBlocks][2]) {
  const float* row[kRows];
  for (int r = 0; r < kRows; ++r) {
    row[r] = x[r] + 8 * first;
  }
  const float* weights = decoded.weights + 128 * first;
  for (int64_t step = 0; step < decoded.steps; ++step, weights += 512) {
    if constexpr (kFetches) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) { // 64 bytes of each row
        _mm_prefetch(reinterpret_cast<const char*>(x[kRows + r] + 32 * step + 8 * first), _MM_HINT_T0);
      }
    }
#pragma GCC unroll 8
    for (int input = 0; input < 8; ++input) {
#pragma GCC unroll 2
      for (int octet = 0; octet < 2; ++octet) {
        __m512 weight[kBlocks];
#pragma GCC unroll 2
        for (int block = 0; block < kBlocks; ++block) {
          weight[block] = _mm512_load_ps(weights + block * kStepsAhead * 512 + 128 * octet + 16 * input);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m512 number = _mm512_set1_ps(row[r][8 * octet + input]);
#pragma GCC unroll 2
          for (int block = 0; block < kBlocks; ++block) {
            sums[r][block][octet] = _mm512_fmadd_ps(weight[block], number, sums[r][block][octet]);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      row[r] += 32;
    }
  }
}

// Parts of sums stay in `parts`, [rows][blocks][4 octets][16 outputs], until all steps of their group are done. The
// parts are then added, scaled, and added to `a`, [blocks][all rows][16 outputs]. With two octets at a time,
// products of four rows and two blocks need 16 registers, and half as many loads as products.
template <int kRows, int kBlocks, bool kFetches = false>
JIT_PASSES_VNNI void addDecoded(
    const DecodedSteps& decoded, const float* const* x, const float* const* scales, int64_t rows,
    float* parts, float* a) {
  __m512 halves[kRows][kBlocks] = {};
#pragma GCC unroll 2
  for (int first = 0; first < 4; first += 2) {
    __m512 sums[kRows][kBlocks][2] = {};
    if (!decoded.first) {
#pragma GCC unroll 16
      for (int i = 0; i < kRows * kBlocks * 2; ++i) {
        sums[i / 2 / kBlocks][i / 2 % kBlocks][i % 2] =
            _mm512_load_ps(parts + 64 * (i / 2) + 16 * (first + i % 2));
      }
    }
    addOctets512<kRows, kBlocks, kFetches>(decoded, x, first, sums);
    if (!decoded.last) {
#pragma GCC unroll 16
      for (int i = 0; i < kRows * kBlocks * 2; ++i) {
        _mm512_store_ps(
            parts + 64 * (i / 2) + 16 * (first + i % 2), sums[i / 2 / kBlocks][i / 2 % kBlocks][i % 2]);
      }
      continue;
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows * kBlocks; ++i) {
      const int r = i / kBlocks, block = i % kBlocks;
      const __m512 both = _mm512_add_ps(sums[r][block][0], sums[r][block][1]);
      if (first == 0) {
        halves[r][block] = both;
        continue;
      }
      float* to = a + 16 * (block * rows + r);
      const __m512 sum = _mm512_add_ps(halves[r][block], both);
      _mm512_storeu_ps(to, _mm512_fmadd_ps(sum, _mm512_loadu_ps(scales[block]), _mm512_loadu_ps(to)));
    }
  }
}

// Decodes the weights of some steps to float32, which many rows then use one after the other.
template <int kBits, int kBlocks>
JIT_PASSES_VNNI void decodedTile512(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<float>& rows, float* a,
    RowsDone done) {
  constexpr int64_t kOctets = 64; // floats in the parts of one row
  constexpr int kMost = 8 / kBlocks;
  using Add =
      void (*)(const DecodedSteps&, const float* const*, const float* const*, int64_t, float*, float*);
  constexpr Add kRest[] = {addDecoded<1, kBlocks>, addDecoded<2, kBlocks>, addDecoded<3, kBlocks>};
  alignas(64) float weights[kBlocks * kStepsAhead * 512], parts[kGroupedRows<float> * kBlocks * kOctets];
  StepOfFloats<kGroupedRows<float>> x;
  const bool fetches = fetchesRows(shape, rows.count);
  std::fill_n(a, kBlocks * rows.count * 16, 0.0F);
  const uint8_t* at = block + kGroupedHeader;
  for (int64_t first = 0; first < shape.inputs; first += shape.group, at += shape.groupBytes()) {
    const float* scales[kBlocks];
    for (int64_t b = 0; b < kBlocks; ++b) {
      scales[b] = reinterpret_cast<const float*>(at + b * shape.blockBytes());
    }
    const uint8_t* step = at + 64;
    for (int64_t own = 0, steps = 0; own < shape.group; own += 32 * steps) {
      steps = std::clamp<int64_t>((shape.group - own) / 32, 1, kStepsAhead);
      for (int64_t i = 0; i < steps; ++i, step += shape.stepBytes()) {
        for (int64_t b = 0; b < kBlocks; ++b) {
          decodeStep512<kBits>(step + b * shape.blockBytes(), weights + (b * kStepsAhead + i) * 512);
        }
      }
      x.at(rows, first + own, shape.group - own);
      const DecodedSteps decoded{weights, steps, own == 0, own + 32 * steps >= shape.group};
      const auto add = [&](Add some, int64_t r) JIT_PASSES_VNNI {
        some(decoded, x.row + r, scales, rows.count, parts + r * kBlocks * kOctets, a + 16 * r);
      };
      int64_t r = 0;
      for (; fetches && r + 2 * kMost <= rows.count; r += kMost) {
        add(addDecoded<kMost, kBlocks, true>, r);
      }
      for (; r + kMost <= rows.count; r += kMost) {
        add(addDecoded<kMost, kBlocks>, r);
      }
      for (; r + 4 <= rows.count; r += 4) {
        add(addDecoded<4, kBlocks>, r);
      }
      if (r < rows.count) {
        add(kRest[rows.count - r - 1], r);
      }
    }
  }
  done(0, rows.count);
}

template <int kRows>
void codesTile512Of(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<uint8_t>& rows, float* a) {
  shape.bits == 4 ? codesTile512<kRows, 4>(shape, block, rows, a)
                  : codesTile512<kRows, 8>(shape, block, rows, a);
}

template <int kRows>
void floatsTile512Of(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<float>& rows, float* a) {
  shape.bits == 4 ? floatsTile512<kRows, 4>(shape, block, rows, a)
                  : floatsTile512<kRows, 8>(shape, block, rows, a);
}

} // namespace

void groupedCodesVnni(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<uint8_t>& rows, float* a,
    RowsDone done) {
  if (rows.count >= kFewToDecode512 && sharesDecoded512(shape)) {
    const auto many = shape.bits == 4 ? codesOfMany512<4, 1> : codesOfMany512<8, 1>;
    return many(shape, block, rows, a, done);
  }
  inTiles<uint8_t>(
      {codesTile512Of<1>, codesTile512Of<2>, codesTile512Of<3>, codesTile512Of<4>}, shape, block, rows, a,
      done);
}

void groupedPairOfCodesVnni(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<uint8_t>& rows, float* a,
    RowsDone done) {
  const auto many = shape.bits == 4 ? codesOfMany512<4, 2> : codesOfMany512<8, 2>;
  many(shape, block, rows, a, done);
}

void groupedFloatsVnni(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<float>& rows, float* a,
    RowsDone done) {
  if (rows.count >= kFewToDecode512) {
    const auto decoded = shape.bits == 4 ? decodedTile512<4, 1> : decodedTile512<8, 1>;
    return decoded(shape, block, rows, a, done);
  }
  inTiles<float>(
      {floatsTile512Of<1>, floatsTile512Of<2>, floatsTile512Of<3>, floatsTile512Of<4>}, shape, block, rows, a,
      done);
}

void groupedPairOfFloatsVnni(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<float>& rows, float* a,
    RowsDone done) {
  const auto decoded = shape.bits == 4 ? decodedTile512<4, 2> : decodedTile512<8, 2>;
  decoded(shape, block, rows, a, done);
}

} // namespace jit_passes::x86

#else

namespace jit_passes::x86 {

void groupedCodesVnni(const GroupedShape&, const uint8_t*, const GroupedRows<uint8_t>&, float*, RowsDone) {}
void groupedPairOfCodesVnni(
    const GroupedShape&, const uint8_t*, const GroupedRows<uint8_t>&, float*, RowsDone) {}
void groupedFloatsVnni(const GroupedShape&, const uint8_t*, const GroupedRows<float>&, float*, RowsDone) {}
void groupedPairOfFloatsVnni(
    const GroupedShape&, const uint8_t*, const GroupedRows<float>&, float*, RowsDone) {}

} // namespace jit_passes::x86

#endif
