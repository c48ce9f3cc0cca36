// Interleaves the channels of several parts.
#include <algorithm>

#include "vnni.h"

namespace jit_passes::x86 {
namespace {

void spread(const uint8_t* in, int64_t count, const uint8_t* table, int64_t parts, uint8_t* out) {
  for (int64_t c = 0; c < count; ++c) {
    out[c * parts] = table ? table[in[c]] : in[c];
  }
}

void interleaveRun(
    const uint8_t* a, const uint8_t* b, int64_t count, const uint8_t* table_a, const uint8_t* table_b,
    uint8_t* out) {
  spread(a, count, table_a, 2, out);
  spread(b, count, table_b, 2, out + 1);
}

#ifdef JIT_PASSES_HAS_VNNI

// The positions of 64 codes of the result, from code `first` on.
JIT_PASSES_VNNI_INLINE __m512i placesFrom(int64_t first) {
  alignas(64) uint8_t from[64];
  for (int64_t i = 0; i < 64; ++i) {
    from[i] = static_cast<uint8_t>((i & 1) * 64 + (first + i) / 2);
  }
  return _mm512_load_si512(from);
}

JIT_PASSES_VNNI_INLINE __m512i read(const uint8_t* codes, uint64_t lanes, const uint8_t* table) {
  const __m512i found = _mm512_maskz_loadu_epi8(lanes, codes);
  return table ? lookUp(found, loadTable(table)) : found;
}

JIT_PASSES_VNNI void interleaveRunVnni(
    const uint8_t* a, const uint8_t* b, int64_t count, const uint8_t* table_a, const uint8_t* table_b,
    uint8_t* out) {
  const __m512i lower = placesFrom(0), upper = placesFrom(64);
  for (int64_t c = 0; c < count; c += 64) {
    const int64_t left = 2 * (count - c);
    const auto lanes = firstLanes(count - c);
    const __m512i x = read(a + c, lanes, table_a), y = read(b + c, lanes, table_b);
    _mm512_mask_storeu_epi8(out + 2 * c, firstLanes(left), _mm512_permutex2var_epi8(x, lower, y));
    if (left > 64) {
      _mm512_mask_storeu_epi8(out + 2 * c + 64, firstLanes(left - 64), _mm512_permutex2var_epi8(x, upper, y));
    }
  }
}

#else
constexpr auto interleaveRunVnni = interleaveRun;
#endif

} // namespace

void Interleave::run(
    const Image* parts, size_t first, size_t count, const Image& out, int64_t begin, int64_t end) const {
  const auto run = form >= Form::Avx512 ? interleaveRunVnni : interleaveRun;
  const int64_t all = tables.size();
  for (int64_t index = begin; index < end; ++index) {
    for (int64_t x = 0; x < out.width; ++x) {
      uint8_t* to = out.rowAt(index) + x * out.pixel;
      const auto from = [&](size_t part) { return parts[part].rowAt(index) + x * parts[part].pixel; };
      if (all == 2) {
        run(from(0), from(1), parts[0].channels, tables[0], tables[1], to);
        continue;
      }
      for (size_t part = 0; part < count; ++part) {
        spread(from(part), parts[part].channels, tables[first + part], all, to + first + part);
      }
    }
  }
}

} // namespace jit_passes::x86
