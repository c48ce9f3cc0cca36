// jit_passes::search_range_l2: the range whose quantization has the least squared error.
//
// The error is that of squared_error.h. Both ends are searched together, coarse to
// fine, and then each by itself around what was found.
#include "core/registry.h"
#include "squared_error.h"

namespace jit_passes {
namespace {

// Of evenly spaced numbers within (0, 1], the one with the least error; then around it, more and more
// finely. The error has no gradient and many small dents, so neighbours are tried on both sides.
template <typename Error>
float searchFactor(Error error, float low, float high, int steps, int rounds) {
  constexpr int kFine = 4;
  float step = (high - low) / steps, best = high, least = error(high);
  const auto tryFactor = [&](float factor) {
    if (factor > 0 && factor < 1) {
      if (const float candidate = error(factor); candidate < least) {
        best = factor;
        least = candidate;
      }
    }
  };
  for (int i = 1; i < steps; ++i) {
    tryFactor(low + i * step);
  }
  for (int round = 0; round < rounds; ++round) {
    const float centre = best;
    for (int i = 1; i < kFine; ++i) {
      tryFactor(centre - i * step / kFine);
      tryFactor(centre + i * step / kFine);
    }
    step /= kFine;
  }
  return best;
}

// The whole of (0, 1].
template <typename Error>
float searchFactor(Error error) {
  return searchFactor(error, 0, 1, /*steps=*/16, /*rounds=*/3);
}

// Around what is nearly best already.
template <typename Error>
float searchFactorAround(Error error, float centre) {
  constexpr float kReach = 0.25;
  return searchFactor(
      error, std::max(centre - kReach, 0.0f), std::min(centre + kReach, 1.0f), /*steps=*/4, /*rounds=*/2);
}

// min and max are the exact range that was seen: the outermost bins reach beyond it.
std::tuple<double, double> searchRangeL2(
    const at::Tensor& histogram, int64_t exponent, int64_t offset, double min, double max, int64_t quant_min,
    int64_t quant_max, bool symmetric) {
  const IntegerGrid grid{quant_min, quant_max, symmetric};
  const auto bins = binsOf(histogram, exponent, offset, min, max);
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
  // Another turn gains less than half a percent.
  const float above =
      searchFactorAround([&](float factor) { return errorOf(bins, grid, low * both, high * factor); }, both);
  const float below =
      searchFactorAround([&](float factor) { return errorOf(bins, grid, low * factor, high * above); }, both);
  return {low * below, high * above};
}

const RegisterOp search_range_l2_op{
    "search_range_l2(Tensor histogram, int exponent, int offset, float min, float max, int quant_min, "
    "int quant_max, bool symmetric) -> (float, float)",
    "The range whose quantization has the least squared error.", onCpu(searchRangeL2)};

} // namespace
} // namespace jit_passes
