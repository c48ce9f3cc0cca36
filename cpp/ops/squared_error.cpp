#include "squared_error.h"

#include "core/vectorize.h"

namespace jit_passes {
namespace {

JIT_PASSES_VECTORIZED float squaredError(
    const float* centres, const float* counts, int64_t size, float scale, float zero_point, float low,
    float high) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  const float inverse = 1.0f / scale;
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float x = centres[i + lane];
      const float code = __builtin_rintf(x * inverse) + zero_point;
      const float above = code < low ? low : code;
      const float difference = x - ((above > high ? high : above) - zero_point) * scale;
      sums[lane] += counts[i + lane] * difference * difference;
    }
  }
  float total = 0;
  for (; i < size; ++i) {
    const float code = __builtin_rintf(centres[i] * inverse) + zero_point;
    const float above = code < low ? low : code;
    const float difference = centres[i] - ((above > high ? high : above) - zero_point) * scale;
    total += counts[i] * difference * difference;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    total += sums[lane];
  }
  return total;
}

} // namespace

Bins binsOf(const at::Tensor& histogram, int64_t exponent, int64_t offset, double min, double max) {
  Bins bins;
  const int64_t* counts = histogram.const_data_ptr<int64_t>();
  bins.unit = std::ldexp(1.0, exponent);
  min /= bins.unit;
  max /= bins.unit;
  bins.centres.resize(histogram.numel());
  bins.counts.resize(histogram.numel());
  size_t filled = 0; // without a branch: which bins are empty cannot be predicted
  for (int64_t bin = 0; bin < histogram.numel(); ++bin) {
    const double centre = static_cast<double>(offset + bin) + 0.5; // exact
    bins.centres[filled] = static_cast<float>(std::min(std::max(centre, min), max));
    bins.counts[filled] = static_cast<float>(counts[bin]);
    filled += counts[bin] != 0;
  }
  bins.centres.resize(filled);
  bins.counts.resize(filled);
  return bins;
}

float errorOf(const Bins& bins, const IntegerGrid& grid, float min, float max) {
  const float steps = static_cast<float>(grid.quant_max - grid.quant_min);
  const auto low = static_cast<float>(std::min(min, 0.0f) / bins.unit);
  const auto high = static_cast<float>(std::max(max, 0.0f) / bins.unit);
  const float scale = grid.symmetric ? 2 * std::max(-low, high) / steps : (high - low) / steps;
  const float middle = static_cast<float>((grid.quant_min + grid.quant_max + 1) / 2);
  const float zero_point =
      grid.symmetric ? middle : std::round(static_cast<float>(grid.quant_min) - low / scale);
  return scale > 0 ? squaredError(
                         bins.centres.data(), bins.counts.data(), bins.centres.size(), scale, zero_point,
                         grid.quant_min, grid.quant_max)
                   : std::numeric_limits<float>::infinity();
}

} // namespace jit_passes
