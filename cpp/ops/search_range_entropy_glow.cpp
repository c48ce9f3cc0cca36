// jit_passes::search_range_entropy_glow: the window of bins to keep, from the first to the end, by the least
// relative entropy, as in Glow (lib/Quantization/Base/Calibration.cpp).
//
// The window begins with all bins. While it has at least `groups`:
//
//   P = the window, the counts outside folded into its first and last bin
//   Q = the window in `groups` groups of floor(size / groups) bins, the remainder in the last; each
//       bin that is not empty in P has the mean of its group's bins that are not empty
//   D = sum of P ln(P / Q), both conditioned and normalized; conditioning makes empty bins 1e-4 and
//       takes that from the others
//   symmetric: the window loses a bin at each end
//   otherwise: that, or the first two bins, or the last two, whichever loses the fewest counts; the
//              former ones win ties
//
// The first window with the least D wins. The windows depend on the counts alone, so they are compared in parallel.
// A window without counts is no candidate: the original gives it divergence 0 and takes it. The original computes in
// float32, this operator in double.
#include <cmath>
#include <numeric>

#include "divergence.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

constexpr double kEmpty = 1e-4;

struct Window {
  int64_t begin;
  int64_t end;

  int64_t size() const { return end - begin; }
};

std::vector<Window> windowsOf(const std::vector<double>& counts, int64_t groups, bool symmetric) {
  std::vector<Window> windows;
  Window window{0, static_cast<int64_t>(counts.size())};
  while (window.size() >= groups) {
    windows.push_back(window);
    const double first = counts[window.begin], last = counts[window.end - 1];
    const double both = first + last;
    const double left = first + counts[window.begin + 1], right = last + counts[window.end - 2];
    if (symmetric || (both <= left && both <= right)) {
      ++window.begin;
      --window.end;
    } else if (left <= right) {
      window.begin += 2;
    } else {
      window.end -= 2;
    }
  }
  return windows;
}

// Returns the sum of all bins.
double condition(std::vector<double>& bins) {
  const int64_t empty = std::count(bins.begin(), bins.end(), 0.0);
  const int64_t filled = static_cast<int64_t>(bins.size()) - empty;
  const double taken = filled ? kEmpty * empty / filled : 1;
  double total = 0;
  for (double& bin : bins) {
    if (taken < 1) {
      bin = bin == 0 ? kEmpty : bin - taken;
    }
    total += bin;
  }
  return total;
}

double divergenceOf(const std::vector<double>& counts, Window window, int64_t groups) {
  const double* inside = counts.data() + window.begin;
  const int64_t size = window.size(), merged = size / groups;
  std::vector<double> p(inside, inside + size), q(size, 0.0);
  p.front() = std::accumulate(counts.begin(), counts.begin() + window.begin + 1, 0.0);
  p.back() = std::accumulate(counts.begin() + window.end - 1, counts.end(), 0.0);
  double kept = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t begin = group * merged, end = group + 1 < groups ? begin + merged : size;
    const double sum = std::accumulate(inside + begin, inside + end, 0.0);
    const int64_t filled = end - begin - std::count(inside + begin, inside + end, 0.0);
    for (int64_t bin = begin; bin < end; ++bin) {
      q[bin] = filled && p[bin] != 0 ? sum / static_cast<double>(filled) : 0;
    }
    kept += sum;
  }
  if (kept == 0) {
    return std::numeric_limits<double>::infinity();
  }
  const double p_sum = condition(p), q_sum = condition(q);
  double divergence = 0;
  for (int64_t bin = 0; bin < size; ++bin) {
    if (p[bin] > 0 && q[bin] > 0) {
      divergence += p[bin] / p_sum * std::log(p[bin] / p_sum / (q[bin] / q_sum));
    }
  }
  return divergence;
}

std::tuple<int64_t, int64_t> searchRangeEntropyGlow(
    const at::Tensor& histogram, int64_t groups, bool symmetric) {
  TORCH_CHECK(groups > 1, "the search needs at least two groups, not ", groups);
  const auto counts = countsOf(histogram);
  const auto windows = windowsOf(counts, groups, symmetric);
  if (windows.empty()) {
    return {0, counts.size()};
  }
  const auto divergence = [&](int64_t i) { return divergenceOf(counts, windows[i], groups); };
  const auto best = windows[firstOfLeast(divergencesOf(windows.size(), 16, divergence))];
  return {best.begin, best.end};
}

const RegisterOp search_range_entropy_glow_op{
    "search_range_entropy_glow(Tensor counts, int groups, bool symmetric) -> (int, int)",
    "The first and last bin to keep, by the least relative entropy.", onCpu(searchRangeEntropyGlow)};

} // namespace
} // namespace jit_passes
