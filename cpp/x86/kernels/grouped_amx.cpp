// Linear layers with a scale for each group of inputs, for AMX: up to 32 rows in two tile registers, by 16 outputs.
#include "amx.h"
#include "grouped_steps.h"
#include "grouped_tile.h"

namespace jit_passes::x86 {

#ifdef JIT_PASSES_HAS_AMX

namespace {

constexpr int64_t kRows = 32;  // of two tile registers
constexpr int64_t kAhead = 16; // steps that are decoded at a time, since tile registers wait for stores

JIT_PASSES_VNNI_INLINE void addScaled(const int32_t* sums, const uint8_t* scales, __m512 (&all)[16]) {
  const __m512 by = _mm512_loadu_ps(scales);
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    all[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + 16 * r)), by, all[r]);
  }
}

// The beginning of a group: its scales, and 64 bytes later its steps.
const uint8_t* scalesOf(const GroupedShape& shape, const uint8_t* block, int64_t group) {
  return block + kGroupedHeader + group * shape.groupBytes();
}

// At most sixteen rows, for the steps from `begin` to `end`. The sums of a group pass through memory. These sums are
// scaled and added while the products of the next group are computed.
template <int kBits, int kHalf>
JIT_PASSES_VNNI void halfAmx(
    const GroupedShape& shape, const uint8_t* block, const uint8_t* decoded, const GroupedRows<uint8_t>& rows,
    int64_t begin, int64_t end, float* a) {
  const int64_t steps = shape.steps(), together = steps % 2 == 0 ? 2 : 1;
  const int64_t apart = rows.row[1] - rows.row[0];
  alignas(64) int32_t sums[2][16 * 16] = {};
  __m512 all[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    all[r] = _mm512_load_ps(a + 16 * r);
  }
  int64_t group = begin / steps, step = begin % steps;
  bool waits = false;
  for (int64_t at = begin; at < end; at += together) {
    const uint8_t* weights = kBits == 4 ? decoded + (at - begin) * kDecodedStep
                                        : scalesOf(shape, block, group) + 64 + step * kDecodedStep;
    if (step == 0) {
      TileRegisters::clear<kHalf>();
    }
    TileRegisters::load<6>(weights, 64);
    TileRegisters::load<4 + kHalf>(rows.row[16 * kHalf] + 32 * at, apart);
    TileRegisters::add<kHalf, 4 + kHalf, 6>();
    step += together;
    if (step == steps) {
      TileRegisters::store<kHalf>(sums[group % 2], 64);
      if (waits) {
        addScaled(sums[(group - 1) % 2], scalesOf(shape, block, group - 1), all);
      }
      waits = true, step = 0, ++group;
    }
  }
  if (waits) {
    addScaled(sums[(group - 1) % 2], scalesOf(shape, block, group - 1), all);
  }
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    _mm512_store_ps(a + 16 * r, all[r]);
  }
}

// Registers 0 and 1 are sums of the two halves of rows, 4 and 5 these halves, and 6 the weights of one step or two.
template <int kBits>
JIT_PASSES_VNNI void codesTileAmx(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<uint8_t>& rows, float* a) {
  const int64_t steps = shape.steps(), all = shape.groups() * steps;
  const auto quads = static_cast<uint8_t>(steps % 2 == 0 ? 16 : 8), bytes = static_cast<uint8_t>(4 * quads);
  const auto half = [&](int64_t first) -> uint8_t { return std::clamp<int64_t>(rows.count - first, 0, 16); };
  const auto shapeOf = [](uint8_t rows, uint8_t bytes) -> TileRegisters::Shape {
    return {rows, rows ? bytes : uint8_t{0}};
  };
  const std::array<TileRegisters::Shape, 8> registers{
      shapeOf(half(0), 64),     shapeOf(half(16), 64), {}, {}, shapeOf(half(0), bytes),
      shapeOf(half(16), bytes), shapeOf(quads, 64),    {}};
  const TileRegisters configured(registers);
  alignas(64) uint8_t decoded[kAhead * kDecodedStep];
  std::fill_n(a, kRows * 16, 0.0F);
  for (int64_t begin = 0; begin < all; begin += kAhead) {
    const int64_t end = std::min(begin + kAhead, all);
    for (int64_t i = begin; kBits == 4 && i < end; ++i) {
      const uint8_t* step = scalesOf(shape, block, i / steps) + 64 + i % steps * shape.stepBytes();
      decodeStepToBytes(step, decoded + (i - begin) * kDecodedStep);
    }
    halfAmx<kBits, 0>(shape, block, decoded, rows, begin, end, a);
    if (rows.count > 16) {
      halfAmx<kBits, 1>(shape, block, decoded, rows, begin, end, a + 256);
    }
  }
}

} // namespace

void groupedCodesAmx(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<uint8_t>& rows, float* a,
    RowsDone done) {
  constexpr int64_t kFewest = 8; // with fewer rows, a register waits for its weights
  for (int64_t r = 0; r < rows.count; r += kRows) {
    const auto some = rows.from(r, kRows);
    float* own = a + r * GroupedShape::kOutputs;
    if (some.count < kFewest) {
      groupedCodesVnni(
          shape, block, some, own, [&](int64_t first, int64_t count) { done(r + first, count); });
      continue;
    }
    const auto tile = shape.bits == 4 ? codesTileAmx<4> : codesTileAmx<8>;
    tile(shape, block, some, own);
    done(r, some.count);
  }
}

#else

void groupedCodesAmx(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<uint8_t>& rows, float* a,
    RowsDone done) {
  groupedCodesVnni(shape, block, rows, a, done);
}

#endif

} // namespace jit_passes::x86
