// Decodes rows of a table of codes to float32.
#include "embedding.h"

#include <algorithm>

#include "plain.h"

namespace jit_passes::x86 {
namespace {

JIT_PASSES_VECTORIZED void decodeBytes(
    const uint8_t* codes, int64_t count, float zero_point, float scale, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = (static_cast<float>(codes[i]) - zero_point) * scale;
  }
}

JIT_PASSES_VECTORIZED void decodeLower(
    const uint8_t* codes, int64_t count, float zero_point, float scale, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = (static_cast<float>(codes[i] & 15) - zero_point) * scale;
  }
}

JIT_PASSES_VECTORIZED void decodeUpper(
    const uint8_t* codes, int64_t count, float zero_point, float scale, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = (static_cast<float>(codes[i] >> 4) - zero_point) * scale;
  }
}

} // namespace

void CodedRows::decode(int64_t row, float* out) const {
  const uint8_t* of_row = codes + row * rowBytes();
  const int64_t half = bits == 4 ? columns / 2 : columns, size = columns / groups;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t begin = group * size, end = begin + size;
    const float scale = scales[row * groups + group];
    const float zero_point =
        zero_points != nullptr ? zero_points[row * groups + group] : static_cast<float>(1 << (bits - 1));
    if (bits == 8) {
      decodeBytes(of_row + begin, size, zero_point, scale, out + begin);
      continue;
    }
    const int64_t lower = std::clamp(half, begin, end); // the upper halves begin here
    decodeLower(of_row + begin, lower - begin, zero_point, scale, out + begin);
    decodeUpper(of_row + lower - half, end - lower, zero_point, scale, out + lower);
  }
}

} // namespace jit_passes::x86
