// Codes of grids.
#include "program.h"

namespace jit_passes::x86 {
namespace {

bool isCode(int64_t number) { return number >= 0 && number <= 255; }

} // namespace

int64_t codeOf(float x, const Grid& grid) {
  const float inverse = 1 / static_cast<float>(grid.scale), offset = static_cast<float>(offsetOf(grid));
  const float rounded = __builtin_rintf(__builtin_fmaf(x, inverse, offset));
  const float code = rounded + static_cast<float>(grid.zero_point - offsetOf(grid));
  return static_cast<int64_t>(std::clamp(code, static_cast<float>(grid.low), static_cast<float>(grid.high)));
}

at::Tensor rescaled(const Grid& from, const Grid& to) {
  auto table = at::empty({256}, at::kByte);
  for (int64_t code = 0; code < 256; ++code) {
    const float x = static_cast<float>(code - from.zero_point) * static_cast<float>(from.scale);
    table.mutable_data_ptr<uint8_t>()[code] = static_cast<uint8_t>(codeOf(x, to));
  }
  return table;
}

void checkGrid(const Grid& grid, size_t index) {
  if (grid.is_float) {
    const bool plain = grid.scale == kFloat32.scale && grid.zero_point == kFloat32.zero_point &&
                       grid.low == kFloat32.low && grid.high == kFloat32.high;
    TORCH_CHECK(plain, "not a plan: value ", index, " is float32, and has a grid");
    return;
  }
  // Kernels compute with the scale in float32.
  const auto scale = static_cast<float>(grid.scale);
  TORCH_CHECK(
      std::isfinite(scale) && scale > 0 && std::isfinite(1 / scale) && grid.low <= grid.high &&
          isCode(grid.low) && isCode(grid.high) && isCode(grid.zero_point),
      "not a plan: value ", index, " has the scale ", grid.scale, ", the zero point ", grid.zero_point,
      " and the codes [", grid.low, ", ", grid.high, "]: a scale is above 0, codes are in [0, 255]");
}

} // namespace jit_passes::x86
