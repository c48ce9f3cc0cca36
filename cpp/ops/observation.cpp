#include "observation.h"

#include "graph/callers_error.h"
#include "vectorize.h"

namespace jit_passes {
namespace {

constexpr int64_t kObservationGrain = 1 << 15;
constexpr int kLanes = 64; // independent running minima, so that the loop vectorizes without -ffast-math

JIT_PASSES_VECTORIZED void findExtremes(const float* x, int64_t count, Extremes* result) {
  float low[kLanes], high[kLanes], poison[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    low[lane] = result->min;
    high[lane] = result->max;
    poison[lane] = 0.0f;
  }
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = x[i + lane];
      low[lane] = value < low[lane] ? value : low[lane];
      high[lane] = value > high[lane] ? value : high[lane];
      poison[lane] += value * 0.0f; // 0 * inf and 0 * nan are nan, and nan stays
    }
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    low[lane] = x[i] < low[lane] ? x[i] : low[lane];
    high[lane] = x[i] > high[lane] ? x[i] : high[lane];
    poison[lane] += x[i] * 0.0f;
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      low[lane] = low[lane + half] < low[lane] ? low[lane + half] : low[lane];
      high[lane] = high[lane + half] > high[lane] ? high[lane + half] : high[lane];
      poison[lane] += poison[lane + half];
    }
  }
  result->min = low[0];
  result->max = high[0];
  result->finite &= poison[0] == 0.0f;
}

} // namespace

void Extremes::add(const float* x, int64_t count) { findExtremes(x, count, this); }

void Extremes::merge(const Extremes& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  finite &= other.finite;
}

void checkFinite(const Extremes& seen, c10::string_view name) {
  checkCaller(
      seen.finite, "the value '", name, "' holds a NaN or an infinity (in float32) in this batch: ",
      "look at the calibration data, or at the float model with torch.isfinite");
}

std::vector<MinMax> checkedRanges(const std::vector<Extremes>& seen, c10::string_view name) {
  std::vector<MinMax> result;
  for (const auto& extremes : seen) {
    checkFinite(extremes, name);
    result.push_back({extremes.min, extremes.max});
  }
  return result;
}

at::Tensor valuesOf(const at::Tensor& x) {
  const auto detached = x.detach().to(at::kFloat);
  return detached.is_non_overlapping_and_dense() ? detached : detached.contiguous();
}

std::vector<Extremes> extremesOfRows(const at::Tensor& rows) {
  if (rows.numel() == 0) {
    return std::vector<Extremes>(rows.size(0));
  }
  const auto ends = at::stack({at::amin(rows, 1), at::amax(rows, 1)}).to(at::kCPU); // of a NaN both are
  const float *low = ends.const_data_ptr<float>(), *high = low + rows.size(0);
  std::vector<Extremes> seen(rows.size(0));
  for (size_t row = 0; row < seen.size(); ++row) {
    seen[row] = {low[row], high[row], std::isfinite(low[row]) && std::isfinite(high[row])};
  }
  return seen;
}

MinMax minMaxOf(const at::Tensor& values, c10::string_view name, Measured how) {
  if (how == Measured::ByOperators) {
    return checkedRanges(extremesOfRows(values.reshape({1, -1})), name).front();
  }
  const float* x = values.const_data_ptr<float>();
  const int64_t count = values.numel(), chunks = (count + kObservationGrain - 1) / kObservationGrain;
  std::vector<Extremes> partial(chunks);
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      partial[chunk].add(
          x + chunk * kObservationGrain, std::min(kObservationGrain, count - chunk * kObservationGrain));
    }
  });
  Extremes all;
  for (const auto& part : partial) {
    all.merge(part);
  }
  checkFinite(all, name);
  return {all.min, all.max};
}

std::vector<MinMax> minMaxOfRows(const at::Tensor& rows, c10::string_view name, Measured how) {
  if (how == Measured::ByOperators) {
    return checkedRanges(extremesOfRows(rows), name);
  }
  const float* x = rows.const_data_ptr<float>();
  const int64_t count = rows.size(1);
  std::vector<Extremes> partial(rows.size(0));
  at::parallel_for(
      0, rows.size(0), std::max<int64_t>(1, kObservationGrain / std::max<int64_t>(count, 1)),
      [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          partial[row].add(x + row * count, count);
        }
      });
  return checkedRanges(partial, name);
}

std::vector<MinMax> minMaxOfPairSums(const at::Tensor& rows, c10::string_view name, Measured how) {
  auto result = minMaxOfRows(rows, name, how);
  const int64_t pairs = rows.size(1) / 2;
  if (pairs > 0) {
    const auto neighbours = rows.narrow(1, 0, 2 * pairs).reshape({rows.size(0), pairs, 2});
    for (const auto& sums : {neighbours.clamp_min(0).sum(2), neighbours.clamp_max(0).sum(2)}) {
      const auto found = minMaxOfRows(sums, name, how);
      for (size_t row = 0; row < found.size(); ++row) {
        result[row].min = std::min(result[row].min, found[row].min);
        result[row].max = std::max(result[row].max, found[row].max);
      }
    }
  }
  return result;
}

bool observeShape(const at::Tensor& x, double* range) {
  range[kLowestRank] = std::min(range[kLowestRank], static_cast<double>(x.dim()));
  range[kHighestRank] = std::max(range[kHighestRank], static_cast<double>(x.dim()));
  return x.is_floating_point() && x.numel() > 0;
}

} // namespace jit_passes
