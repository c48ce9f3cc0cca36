// jit_passes::search_range_exhaustive: the range of a grid whose quantization has the least squared
// error.
//
//   low = a / factors * min(min, 0), high = b / factors * max(max, 0)      a, b in 1 .. factors
//
// with a = b where the range is symmetric or one-sided. The error is that of squared_error.h, so
// this is search_range_l2 without its assumption that both ends can be found one after the other.
// Of ranges with the same error the widest upper end wins, then the widest lower end.
#include <ATen/Parallel.h>

#include "core/registry.h"
#include "squared_error.h"

namespace jit_passes {
namespace {

std::tuple<double, double> searchRangeExhaustive(
    const at::Tensor& histogram, int64_t exponent, int64_t offset, double min, double max, int64_t quant_min,
    int64_t quant_max, bool symmetric, int64_t factors) {
  TORCH_CHECK(factors > 0, "the search needs at least one factor, not ", factors);
  const IntegerGrid grid{quant_min, quant_max, symmetric};
  const auto bins = binsOf(histogram, exponent, offset, min, max);
  float low = std::min(min, 0.0), high = std::max(max, 0.0);
  if (symmetric) {
    high = std::max(-low, high);
    low = -high;
  }
  const bool together = symmetric || low == 0 || high == 0;
  const int64_t inner = together ? 1 : factors;
  const auto range = [&](int64_t candidate) {
    const float above = static_cast<float>(factors - candidate / inner) / factors;
    const float below = together ? above : static_cast<float>(factors - candidate % inner) / factors;
    return std::pair<float, float>{low * below, high * above};
  };
  std::vector<float> errors(factors * inner);
  at::parallel_for(0, factors * inner, 64, [&](int64_t begin, int64_t end) {
    for (int64_t candidate = begin; candidate < end; ++candidate) {
      const auto [from, to] = range(candidate);
      errors[candidate] = errorOf(bins, grid, from, to);
    }
  });
  return range(std::min_element(errors.begin(), errors.end()) - errors.begin());
}

const RegisterOp search_range_exhaustive_op{
    "search_range_exhaustive(Tensor histogram, int exponent, int offset, float min, float max, "
    "int quant_min, int quant_max, bool symmetric, int factors) -> (float, float)",
    "The range of a grid whose quantization has the least squared error.", onCpu(searchRangeExhaustive)};

} // namespace
} // namespace jit_passes
