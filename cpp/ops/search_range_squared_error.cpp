// Ranges by the squared error of quantizing a histogram.
//
//   error(range) = sum over bins of  count * (x - dequantize(quantize(x)))^2    at the bin's centre
//
// with scale and zero point derived from the range as the quantizer will derive them. A model of uniform rounding
// noise does not know that 0 has an exact code. This error does, which matters after a ReLU.
//
// jit_passes::search_range_l2: the range with the least error. Both ends are searched together, coarse to fine, and
// then each by itself around the range found. A symmetric range may be wider than the numbers: see widestOf.
//
// jit_passes::search_range_exhaustive: the range of a grid with the least error.
//
//   low = a / factors * min(min, 0), high = b / factors * max(max, 0)      a, b in 1 .. factors
//
// with a = b if the range is symmetric or one-sided. Unlike search_range_l2 it does not assume that the ends can be
// found one after the other. Symmetric ranges go up to the widest: see widestOf. Among ranges with equal errors the
// widest upper end wins, then the widest lower end.
//
// jit_passes::search_range_of_rows: one of the two searches for each row of a matrix. Each number is a bin of its
// own, with its importance as count.
#include <ATen/Parallel.h>

#include "graph/registry.h"
#include "vectorize.h"

namespace jit_passes {
namespace {

// In units of a bin, a power of two, so that sums of squares neither overflow nor underflow.
struct Bins {
  double unit;
  std::vector<float> centres;
  std::vector<float> counts;
};

struct IntegerGrid {
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

// The bins that are not empty. min and max are the exact range of the numbers: the outermost bins reach beyond it.
Bins binsOf(const at::Tensor& histogram, int64_t exponent, int64_t offset, double min, double max) {
  Bins bins;
  const int64_t* counts = histogram.const_data_ptr<int64_t>();
  bins.unit = std::ldexp(1.0, exponent);
  min /= bins.unit;
  max /= bins.unit;
  bins.centres.resize(histogram.numel());
  bins.counts.resize(histogram.numel());
  size_t filled = 0; // without a branch, which could not be predicted
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

// The error in squared units. Infinite for an empty range.
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

// The factor of the widest symmetric range. If a grid has one more code below 0 than above it, such as [-8, 7], a
// number at the end of the range is half a step beyond the last code above 0. A range that is wider by this half
// step, a factor of 15 / 14 for [-8, 7], has a code for the number, if float32 can represent the range. Other ranges
// are never wider than the numbers.
float widestOf(const IntegerGrid& grid, float high) {
  const int64_t middle = (grid.quant_min + grid.quant_max + 1) / 2;
  const int64_t codes = std::min(grid.quant_max - middle, middle - grid.quant_min); // on the shorter side
  const auto steps = static_cast<float>(grid.quant_max - grid.quant_min);
  const float widest = codes > 0 ? std::max(steps / static_cast<float>(2 * codes), 1.0f) : 1.0f;
  return grid.symmetric && std::isfinite(high * widest) ? widest : 1.0f;
}

// The number with the least error among evenly spaced numbers in (low, high] and `widest`; then around it, in finer
// and finer steps. The error has no gradient and many small local minima, so neighbours on both sides are tried.
template <typename Error>
float searchFactor(Error error, float low, float high, int steps, int rounds, float widest = 1) {
  constexpr int kFine = 4;
  float step = (high - low) / steps, best = high, least = error(high);
  const auto tryFactor = [&](float factor) {
    if (const float candidate = error(factor); candidate < least) {
      best = factor;
      least = candidate;
    }
  };
  for (int i = 1; i < steps; ++i) {
    tryFactor(low + i * step);
  }
  if (widest > 1) {
    tryFactor(widest);
  }
  for (int round = 0; round < rounds; ++round) {
    const float centre = best;
    for (int i = 1; i < kFine; ++i) {
      for (const float factor : {centre - i * step / kFine, centre + i * step / kFine}) {
        if (factor > 0 && factor < widest) {
          tryFactor(factor);
        }
      }
    }
    step /= kFine;
  }
  return best;
}

// Searches all of (0, 1], and beyond up to the widest range.
template <typename Error>
float searchFactor(Error error, float widest) {
  return searchFactor(error, 0, 1, /*steps=*/16, /*rounds=*/3, widest);
}

// Searches around a number that is nearly the best.
template <typename Error>
float searchFactorAround(Error error, float centre) {
  constexpr float kReach = 0.25;
  return searchFactor(
      error, std::max(centre - kReach, 0.0f), std::min(centre + kReach, 1.0f), /*steps=*/4, /*rounds=*/2);
}

using Range = std::tuple<double, double>;

Range searchCoarseToFine(const Bins& bins, const IntegerGrid& grid, double min, double max) {
  float low = std::min(min, 0.0), high = std::max(max, 0.0);
  if (grid.symmetric) {
    high = std::max(-low, high);
    high *= searchFactor(
        [&](float factor) { return errorOf(bins, grid, -high * factor, high * factor); },
        widestOf(grid, high));
    return {-high, high};
  }
  const float both =
      searchFactor([&](float factor) { return errorOf(bins, grid, low * factor, high * factor); }, 1);
  if (low == 0 || high == 0) {
    return {low * both, high * both};
  }
  // Another round would gain less than half a percent.
  const float above =
      searchFactorAround([&](float factor) { return errorOf(bins, grid, low * both, high * factor); }, both);
  const float below =
      searchFactorAround([&](float factor) { return errorOf(bins, grid, low * factor, high * above); }, both);
  return {low * below, high * above};
}

Range searchRangeL2(
    const at::Tensor& histogram, int64_t exponent, int64_t offset, double min, double max, int64_t quant_min,
    int64_t quant_max, bool symmetric) {
  const auto bins = binsOf(histogram, exponent, offset, min, max);
  return searchCoarseToFine(bins, {quant_min, quant_max, symmetric}, min, max);
}

const RegisterOp search_range_l2_op{
    "search_range_l2(Tensor histogram, int exponent, int offset, float min, float max, int quant_min, "
    "int quant_max, bool symmetric) -> (float, float)",
    "The range whose quantization has the least squared error.", onCpu(searchRangeL2)};

Range searchGrid(const Bins& bins, const IntegerGrid& grid, double min, double max, int64_t factors) {
  float low = std::min(min, 0.0), high = std::max(max, 0.0);
  if (grid.symmetric) {
    high = std::max(-low, high);
    low = -high;
  }
  const bool together = grid.symmetric || low == 0 || high == 0;
  const float widest = widestOf(grid, high);
  const int64_t first = widest > 1, outer = static_cast<int64_t>(static_cast<float>(factors) * widest);
  const int64_t inner = together ? 1 : factors, count = first + outer * inner;
  const auto range = [&](int64_t candidate) {
    const int64_t steps = outer - (candidate - first) / inner;
    const float above = candidate < first ? widest : static_cast<float>(steps) / factors;
    const float below = together ? above : static_cast<float>(factors - candidate % inner) / factors;
    return std::pair<float, float>{low * below, high * above};
  };
  std::vector<float> errors(count);
  at::parallel_for(0, count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t candidate = begin; candidate < end; ++candidate) {
      const auto [from, to] = range(candidate);
      errors[candidate] = errorOf(bins, grid, from, to);
    }
  });
  return range(std::min_element(errors.begin(), errors.end()) - errors.begin());
}

Range searchRangeExhaustive(
    const at::Tensor& histogram, int64_t exponent, int64_t offset, double min, double max, int64_t quant_min,
    int64_t quant_max, bool symmetric, int64_t factors) {
  TORCH_CHECK(factors > 0, "the search needs at least one factor, not ", factors);
  const auto bins = binsOf(histogram, exponent, offset, min, max);
  return searchGrid(bins, {quant_min, quant_max, symmetric}, min, max, factors);
}

const RegisterOp search_range_exhaustive_op{
    "search_range_exhaustive(Tensor histogram, int exponent, int offset, float min, float max, "
    "int quant_min, int quant_max, bool symmetric, int factors) -> (float, float)",
    "The range of a grid whose quantization has the least squared error.", onCpu(searchRangeExhaustive)};

// All numbers count alike if `importance` is null or all zeros.
Bins binsOfRow(const float* row, const float* importance, int64_t size, double largest) {
  Bins bins{std::ldexp(1.0, std::ilogb(largest)), std::vector<float>(size), std::vector<float>(size, 1)};
  std::transform(
      row, row + size, bins.centres.begin(), [&](float x) { return static_cast<float>(x / bins.unit); });
  if (importance != nullptr) {
    const float most = *std::max_element(importance, importance + size);
    if (most > 0) {
      std::transform(importance, importance + size, bins.counts.begin(), [&](float x) { return x / most; });
    }
  }
  return bins;
}

at::Tensor searchRowRanges(
    const at::Tensor& rows, const std::optional<at::Tensor>& importance, int64_t quant_min, int64_t quant_max,
    bool symmetric, int64_t factors) {
  TORCH_CHECK(rows.dim() == 2, "the rows are a matrix, not a tensor of shape ", rows.sizes());
  TORCH_CHECK(
      !importance || importance->sizes() == rows.sizes(), "the importance has shape ", importance->sizes(),
      ", and the rows ", rows.sizes());
  TORCH_CHECK(factors >= 0, "the search needs at least one factor, or 0 for coarse to fine, not ", factors);
  const IntegerGrid grid{quant_min, quant_max, symmetric};
  const int64_t size = rows.size(1);
  const auto values = rows.detach().to(at::kFloat).contiguous();
  const auto weights = importance ? importance->to(at::kFloat).contiguous() : at::Tensor();
  auto ranges = at::zeros({2, rows.size(0)}, at::kDouble);
  double *lows = ranges.mutable_data_ptr<double>(), *highs = lows + rows.size(0);
  at::parallel_for(0, rows.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* row = values.const_data_ptr<float>() + i * size;
      const auto [low, high] = std::minmax_element(row, row + size);
      if (size == 0 || (*low == 0 && *high == 0)) {
        continue;
      }
      const float* counts = importance ? weights.const_data_ptr<float>() + i * size : nullptr;
      const auto bins = binsOfRow(row, counts, size, std::max(-*low, *high));
      std::tie(lows[i], highs[i]) = factors > 0 ? searchGrid(bins, grid, *low, *high, factors)
                                                : searchCoarseToFine(bins, grid, *low, *high);
    }
  });
  return ranges;
}

const RegisterOp search_range_of_rows_op{
    "search_range_of_rows(Tensor rows, Tensor? importance, int quant_min, int quant_max, bool symmetric, "
    "int factors) -> Tensor",
    "The range of each row whose quantization has the least squared error.", onCpu(searchRowRanges)};

} // namespace
} // namespace jit_passes
