// jit_passes::lookup_table: a function of integer codes, as a table of its values.
//
//   out[i] = table[codes[i] - first]          table: one entry for each code from `first` on
//
// The result has the dtype of the table, whose entries are copied, and the memory format of the codes. A code
// without an entry is an error. If the table has an entry for each code of the dtype, no check is needed.
#include "graph/registry.h"
#include "grid.h"
#include "vectorize.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define JIT_PASSES_HAS_BYTE_PERMUTE 1
#endif

namespace jit_passes {
namespace {

constexpr int64_t kLookupGrain = 1 << 14;

// The range of codes with entries in the table.
struct Codes {
  int64_t first, last;

  template <typename Code>
  bool all() const {
    return first <= std::numeric_limits<Code>::min() && last >= std::numeric_limits<Code>::max();
  }
};

template <typename Code>
JIT_PASSES_VECTORIZED bool anyOutside(const Code* codes, int64_t count, int32_t first, int32_t last) {
  int32_t outside = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t code = codes[i];
    outside |= static_cast<int32_t>(code < first) | static_cast<int32_t>(code > last);
  }
  return outside != 0;
}

template <typename Code, typename Entry>
JIT_PASSES_VECTORIZED void lookUpRow(
    const Code* codes, Entry* out, int64_t count, const Entry* table, int64_t first) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = table[static_cast<int64_t>(codes[i]) - first];
  }
}

// Looks 64 bytes up at a time, with the whole table in four registers. No compiler vectorizes the loop so, and it is
// 18 times as fast. Returns the number of bytes done, a multiple of 64, or 0 on processors without the instruction.
// `table` has 256 entries, from the code `first` on, which wrap around at 256.
#ifdef JIT_PASSES_HAS_BYTE_PERMUTE
__attribute__((target("avx512f,avx512bw,avx512vbmi"))) int64_t
permuteBytes(const uint8_t* codes, uint8_t* out, int64_t count, const uint8_t* table, uint8_t first) {
  const __m512i a = _mm512_loadu_si512(table), b = _mm512_loadu_si512(table + 64);
  const __m512i c = _mm512_loadu_si512(table + 128), d = _mm512_loadu_si512(table + 192);
  const __m512i shift = _mm512_set1_epi8(static_cast<char>(first));
  const int64_t end = count / 64 * 64;
  for (int64_t i = 0; i < end; i += 64) {
    const __m512i index = _mm512_sub_epi8(_mm512_loadu_si512(codes + i), shift);
    const __m512i lower = _mm512_permutex2var_epi8(a, index, b);
    const __m512i upper = _mm512_permutex2var_epi8(c, index, d);
    _mm512_storeu_si512(out + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), lower, upper));
  }
  return end;
}

int64_t lookUpBytes(const uint8_t* codes, uint8_t* out, int64_t count, const uint8_t* table, uint8_t first) {
  static const bool available = __builtin_cpu_supports("avx512vbmi");
  return available ? permuteBytes(codes, out, count, table, first) : 0;
}
#else
int64_t lookUpBytes(const uint8_t*, uint8_t*, int64_t, const uint8_t*, uint8_t) { return 0; }
#endif

[[noreturn]] void refuse(int64_t code, const Codes& known) {
  TORCH_CHECK(
      false, "the table has entries for the codes ", known.first, " to ", known.last,
      ", and the input holds ", code,
      ": make a table for all codes of the input, from its quant_min, which is `first`, to its quant_max");
}

template <typename Code, typename Entry>
void lookUp(const at::Tensor& codes, const at::Tensor& table, const Codes& known, at::Tensor& out) {
  const Code* from = codes.const_data_ptr<Code>();
  const auto* entries = static_cast<const Entry*>(table.const_data_ptr());
  auto* to = static_cast<Entry*>(out.mutable_data_ptr());
  constexpr bool bytes = sizeof(Code) == 1 && sizeof(Entry) == 1;
  constexpr int64_t lowest = std::numeric_limits<Code>::min();
  std::array<uint8_t, 256> all{}; // one entry for each code of a byte
  if constexpr (bytes) {
    const int64_t begin = std::max(known.first, lowest), end = std::min(known.last, lowest + 255) + 1;
    for (int64_t code = begin; code < end; ++code) {
      all[code - lowest] = entries[code - known.first];
    }
  }
  at::parallel_for(0, codes.numel(), kLookupGrain, [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    if (!known.all<Code>() && anyOutside<Code>(from + begin, count, known.first, known.last)) {
      refuse(
          *std::find_if(
              from + begin, from + end,
              [&](int64_t code) { return code < known.first || code > known.last; }),
          known);
    }
    int64_t done = 0;
    if constexpr (bytes) {
      const auto* row = reinterpret_cast<const uint8_t*>(from + begin);
      done = lookUpBytes(row, to + begin, count, all.data(), static_cast<uint8_t>(lowest));
    }
    lookUpRow<Code, Entry>(from + begin + done, to + begin + done, count - done, entries, known.first);
  });
}

// Entries are copied, so only their size matters.
template <typename Body>
void dispatchEntries(const at::Tensor& table, Body body) {
  switch (table.element_size()) {
    case 1: return body(uint8_t{});
    case 2: return body(uint16_t{});
    case 4: return body(uint32_t{});
    case 8: return body(uint64_t{});
    default: TORCH_CHECK(false, "entries have 1 to 8 bytes, and the table is of ", table.scalar_type());
  }
}

void checkOperands(const at::Tensor& codes, const at::Tensor& table) {
  dispatchCodes(codes.scalar_type(), [](auto) {});
  dispatchEntries(table, [](auto) {});
  TORCH_CHECK(
      table.dim() == 1, "the table has one dimension, an entry for each code, got the shape ",
      table.sym_sizes(), ": call table.reshape(-1)");
}

Codes codesOf(const at::Tensor& table, int64_t first) {
  using Limits = std::numeric_limits<int32_t>;
  const Codes known{first, first + table.numel() - 1};
  TORCH_CHECK(table.numel() > 0, "the table has no entries: it needs one for each code of the input");
  TORCH_CHECK(
      first >= Limits::min() && first <= Limits::max() && known.last <= Limits::max(), "first = ", first,
      " and ", table.numel(), " entries are codes that no dtype holds: first is the input's quant_min");
  return known;
}

at::Tensor emptyLike(const at::Tensor& codes, const at::Tensor& table) {
  return at::empty_like(codes, codes.options().dtype(table.scalar_type()), at::MemoryFormat::Preserve);
}

at::Tensor lookupTable(const at::Tensor& codes, const at::Tensor& table, int64_t first) {
  checkOperands(codes, table);
  const Codes known = codesOf(table, first);
  const auto dense = codes.is_non_overlapping_and_dense() ? codes : codes.clone();
  const auto entries = table.contiguous();
  auto out = emptyLike(dense, table);
  dispatchCodes(codes.scalar_type(), [&](auto code) {
    dispatchEntries(
        table, [&](auto entry) { lookUp<decltype(code), decltype(entry)>(dense, entries, known, out); });
  });
  return out;
}

// For other devices, by PyTorch's indexing. The check for a code without an entry waits for the device, unless the
// dtype rules it out.
at::Tensor lookupTableByIndex(const at::Tensor& codes, const at::Tensor& table, int64_t first) {
  checkOperands(codes, table);
  const Codes known = codesOf(table, first);
  const auto indices = codes.to(at::kLong) - first;
  dispatchCodes(codes.scalar_type(), [&](auto code) {
    if (known.all<decltype(code)>() || codes.numel() == 0) {
      return;
    }
    const auto [lowest, highest] = at::aminmax(indices);
    const int64_t low = lowest.template item<int64_t>(), high = highest.template item<int64_t>();
    if (low < 0 || high >= table.numel()) {
      refuse((low < 0 ? low : high) + first, known);
    }
  });
  return emptyLike(codes, table).copy_(at::take(table, indices));
}

at::Tensor lookupTableMeta(const at::Tensor& codes, const at::Tensor& table, int64_t /*first*/) {
  checkOperands(codes, table);
  return emptyLike(codes, table);
}

const RegisterOp lookup_table_op{
    "lookup_table(Tensor codes, Tensor table, int first) -> Tensor",
    "A function of integer codes, one entry of a table for each code.", onCpu(lookupTable),
    onMeta(lookupTableMeta), onAnyDevice(lookupTableByIndex)};

} // namespace
} // namespace jit_passes
