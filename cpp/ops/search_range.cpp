// jit_passes::search_range_l2: the range whose quantization has the least squared error.
//
//   error(range) = sum over bins of  count * (x - dequantize(quantize(x)))^2    at the bin's centre
//
// with scale and zero point derived from the range as the quantizer will derive them. Unlike an
// error model that assumes uniform rounding noise, this knows that 0 is represented exactly, which
// matters after a ReLU. Both ends are searched in turn, coarse to fine.
#include "core/registry.h"
#include "core/vectorize.h"

namespace jit_passes {
namespace {

struct Bins {
  std::vector<float> centres;
  std::vector<float> counts;
};

struct Grid {
  int64_t quant_min;
  int64_t quant_max;
  bool symmetric;
};

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

float errorOf(const Bins& bins, const Grid& grid, float min, float max) {
  const float steps = static_cast<float>(grid.quant_max - grid.quant_min);
  const float low = std::min(min, 0.0f), high = std::max(max, 0.0f);
  const float scale = grid.symmetric ? 2 * std::max(-low, high) / steps : (high - low) / steps;
  const float middle = static_cast<float>((grid.quant_min + grid.quant_max + 1) / 2);
  const float zero_point =
      grid.symmetric ? middle : std::round(static_cast<float>(grid.quant_min) - low / scale);
  return scale > 0 ? squaredError(
                         bins.centres.data(), bins.counts.data(), bins.centres.size(), scale, zero_point,
                         grid.quant_min, grid.quant_max)
                   : std::numeric_limits<float>::infinity();
}

// The factor in (0, 1] with the least error, to about a thousandth.
template <typename Error>
float searchFactor(Error error) {
  constexpr int kCoarse = 32, kFine = 8;
  float best = 1.0f, least = error(1.0f), step = 1.0f / kCoarse;
  const auto tryFactor = [&](float factor) {
    if (factor > 0 && factor < 1) {
      if (const float candidate = error(factor); candidate < least) {
        best = factor;
        least = candidate;
      }
    }
  };
  for (int i = 1; i < kCoarse; ++i) {
    tryFactor(i * step);
  }
  for (int round = 0; round < 2; ++round) {
    const float centre = best;
    for (int i = -kFine + 1; i < kFine; ++i) {
      tryFactor(centre + i * step / kFine);
    }
    step /= kFine;
  }
  return best;
}

// min and max are the exact range that was seen: the outermost bins reach beyond it.
std::tuple<double, double> searchRangeL2(
    const at::Tensor& histogram, int64_t exponent, int64_t offset, double min, double max, int64_t quant_min,
    int64_t quant_max, bool symmetric) {
  const Grid grid{quant_min, quant_max, symmetric};
  Bins bins;
  const int64_t* counts = histogram.const_data_ptr<int64_t>();
  for (int64_t bin = 0; bin < histogram.numel(); ++bin) {
    if (counts[bin] != 0) {
      const double centre = std::ldexp(static_cast<double>(offset + bin) + 0.5, exponent);
      bins.centres.push_back(static_cast<float>(std::min(std::max(centre, min), max)));
      bins.counts.push_back(static_cast<float>(counts[bin]));
    }
  }
  float low = std::min(min, 0.0), high = std::max(max, 0.0);
  if (symmetric) {
    high = std::max(-low, high);
    high *= searchFactor([&](float factor) { return errorOf(bins, grid, -high * factor, high * factor); });
    return {-high, high};
  }
  const float both =
      searchFactor([&](float factor) { return errorOf(bins, grid, low * factor, high * factor); });
  if (low == 0 || high == 0) {
    return {low * both, high * both};
  }
  float below = both, above = both;
  for (int round = 0; round < 2; ++round) {
    above = searchFactor([&](float factor) { return errorOf(bins, grid, low * below, high * factor); });
    below = searchFactor([&](float factor) { return errorOf(bins, grid, low * factor, high * above); });
  }
  return {low * below, high * above};
}

const RegisterOp op{"search_range_l2", "The range whose quantization has the least squared error."};

TORCH_LIBRARY_FRAGMENT(jit_passes, m) {
  m.def(
      "search_range_l2(Tensor histogram, int exponent, int offset, float min, float max, int quant_min, "
      "int quant_max, bool symmetric) -> (float, float)");
}

TORCH_LIBRARY_IMPL(jit_passes, CPU, m) { m.impl("search_range_l2", searchRangeL2); }

} // namespace
} // namespace jit_passes
