// jit_passes::search_range_klj: the number of bins of a histogram of |x| to keep, by the least symmetric divergence
// (Kullback-Leibler-J) between cumulative distributions. The method is Migacz', changed by D'Alberto and Dasdan,
// algorithm 1 of arXiv:1805.07941. TQT calibrates activations by it.
//
//   cdf = cumulative sum of the normalized counts
//   for i = levels + 1 .. bins:
//     p = cdf, 1 from bin i - 1 on
//     f = p[0 .. i) interpolated at `levels` points, from its first to its last bin
//     q = p, and f interpolated back at i points in [0 .. i)
//     D(i) = sum where cdf != 0 of  (cdf - q) log2(cdf / q)
//
// The first i with the least D wins; all bins if levels + 1 > bins. q is positive where cdf is, since cdf never
// decreases. From bin i on q is 1, so the sum there is one suffix sum for all windows.
#include <cmath>
#include <numeric>

#include "divergence.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

struct Distribution {
  std::vector<double> cdf;
  std::vector<double> logarithm; // log2(cdf)
  std::vector<double> behind;    // sum of (cdf - 1) log2(cdf) from a bin on
};

Distribution distributionOf(const std::vector<double>& counts) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  const auto bins = counts.size();
  Distribution found{std::vector<double>(bins), std::vector<double>(bins), std::vector<double>(bins + 1, 0)};
  double sum = 0; // sums whole numbers exactly, so that the last bin is 1
  for (size_t bin = 0; bin < bins; ++bin) {
    sum += counts[bin];
    found.cdf[bin] = total > 0 ? sum / total : 0;
    found.logarithm[bin] = found.cdf[bin] > 0 ? std::log2(found.cdf[bin]) : 0;
  }
  for (size_t bin = bins; bin-- > 0;) {
    found.behind[bin] = found.behind[bin + 1] + (found.cdf[bin] - 1) * found.logarithm[bin];
  }
  return found;
}

// Interpolates at the fraction index / steps of the way from the first to the last of `size` values.
template <typename Values>
double interpolate(Values values, int64_t size, int64_t index, int64_t steps) {
  const int64_t place = index * (size - 1), below = place / steps, rest = place % steps;
  const double start = values(below);
  return rest ? start + (values(below + 1) - start) * rest / static_cast<double>(steps) : start;
}

double divergenceOf(const Distribution& x, int64_t size, int64_t levels) {
  const auto p = [&](int64_t bin) { return bin == size - 1 ? 1.0 : x.cdf[bin]; };
  std::vector<double> f(levels);
  for (int64_t level = 0; level < levels; ++level) {
    f[level] = interpolate(p, size, level, levels - 1);
  }
  const auto at_level = [&](int64_t level) { return f[level]; };
  double divergence = x.behind[size];
  for (int64_t bin = 0; bin < size; ++bin) {
    if (x.cdf[bin] != 0) {
      const double q = interpolate(at_level, levels, bin, size - 1);
      divergence += (x.cdf[bin] - q) * (x.logarithm[bin] - std::log2(q));
    }
  }
  return divergence;
}

int64_t searchRangeKlj(const at::Tensor& histogram, int64_t levels) {
  TORCH_CHECK(levels > 1, "the search needs at least two levels, not ", levels);
  const auto counts = countsOf(histogram);
  const int64_t bins = static_cast<int64_t>(counts.size()), first = levels + 1;
  if (first > bins) {
    return bins;
  }
  const auto distribution = distributionOf(counts);
  const auto divergence = [&](int64_t i) { return divergenceOf(distribution, first + i, levels); };
  return first + firstOfLeast(divergencesOf(bins - first + 1, 16, divergence));
}

const RegisterOp search_range_klj_op{
    "search_range_klj(Tensor counts, int levels) -> int",
    "The number of bins to keep, by the least divergence of cumulative sums.", onCpu(searchRangeKlj)};

} // namespace
} // namespace jit_passes
