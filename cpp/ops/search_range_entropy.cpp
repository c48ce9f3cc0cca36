// jit_passes::search_range_entropy: the number of bins of a histogram of |x| to keep, by the least relative entropy,
// as in NVIDIA's pytorch_quantization (calib/histogram.py).
//
//   c[0] = c[1], since zero is exact anyway
//   for i = 128 .. bins:
//     P = c[0 .. i), with all later counts added to its last bin
//     Q = c[0 .. i) in `groups` groups, bin k in group floor(k * groups / i); each bin that is not
//         empty has the mean of its group's bins that are not empty
//     D(i) = sum over k of  P ln(P / Q), both normalized
//
// The last i of the least D wins. With prefix sums, and since Q is constant on a group,
//
//   sum P ln Q = sum over groups of  count of the group * ln(mean) + later counts * ln(Q of bin i - 1)
//
// so a window costs one logarithm for each group instead of each bin. A window without counts is no candidate, nor
// is a window whose last bin is empty in Q alone: there the original has NaN and infinity.
#include <cmath>

#include "divergence.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

constexpr int64_t kFirstWindow = 128;

struct Prefix {
  std::vector<double> count, filled, information; // sums over earlier bins of c, c != 0 and c ln c
};

double information(double count) { return count > 0 ? count * std::log(count) : 0; }

Prefix prefixOf(const std::vector<double>& counts) {
  Prefix prefix{{0}, {0}, {0}};
  for (const double count : counts) {
    prefix.count.push_back(prefix.count.back() + count);
    prefix.filled.push_back(prefix.filled.back() + (count > 0));
    prefix.information.push_back(prefix.information.back() + information(count));
  }
  return prefix;
}

double divergenceOf(const Prefix& prefix, int64_t size, int64_t groups) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double total = prefix.count.back(), kept = prefix.count[size], behind = total - kept;
  const double last = kept - prefix.count[size - 1];
  if (kept == 0 || (last == 0 && behind > 0)) {
    return infinity;
  }
  double cross = 0, mean = 0;
  for (int64_t group = 0; group < groups; ++group) {
    // The first bin with floor(k * groups / size) == group.
    const int64_t begin = (group * size + groups - 1) / groups;
    const int64_t end = ((group + 1) * size + groups - 1) / groups;
    const double count = prefix.count[end] - prefix.count[begin];
    if (count > 0) {
      mean = count / (prefix.filled[end] - prefix.filled[begin]);
      cross += count * std::log(mean);
    }
  }
  if (behind > 0) {
    cross += behind * std::log(mean); // the last bin is filled, so the last mean is its group's
  }
  const double own = prefix.information[size - 1] + information(last + behind);
  return (own - cross) / total + std::log(kept / total);
}

int64_t searchRangeEntropy(const at::Tensor& histogram, int64_t groups) {
  TORCH_CHECK(groups > 0, "the search needs at least one group, not ", groups);
  auto counts = countsOf(histogram);
  const int64_t bins = static_cast<int64_t>(counts.size());
  if (bins < kFirstWindow) {
    return bins;
  }
  counts[0] = counts[1];
  const auto prefix = prefixOf(counts);
  const auto divergence = [&](int64_t i) { return divergenceOf(prefix, kFirstWindow + i, groups); };
  return kFirstWindow + lastOfLeast(divergencesOf(bins - kFirstWindow + 1, 64, divergence));
}

const RegisterOp search_range_entropy_op{
    "search_range_entropy(Tensor counts, int groups) -> int",
    "The number of bins to keep, by the least relative entropy.", onCpu(searchRangeEntropy)};

} // namespace
} // namespace jit_passes
