// Functions of the searches for the least divergence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graph/registry.h"

namespace jit_passes {

// Divergences of normalized histograms that differ by less than this count as equal: the order of sums changes them
// by less.
constexpr double kDivergenceTie = 1e-12;

inline std::vector<double> countsOf(const at::Tensor& counts) {
  TORCH_CHECK(
      counts.scalar_type() == at::kLong && counts.dim() == 1 && counts.is_contiguous(),
      "counts must be a contiguous int64 tensor with one dimension, got ", counts.scalar_type(), " of shape ",
      counts.sizes());
  const int64_t* data = counts.const_data_ptr<int64_t>();
  return {data, data + counts.numel()};
}

// The divergences of all candidates, in parallel.
template <typename Divergence>
std::vector<double> divergencesOf(int64_t candidates, int64_t grain, const Divergence& divergence) {
  std::vector<double> divergences(candidates);
  at::parallel_for(0, candidates, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      divergences[i] = divergence(i);
    }
  });
  return divergences;
}

// The first or the last index of the least divergence. The list must not be empty.
inline int64_t firstOfLeast(const std::vector<double>& divergences) {
  const double least = *std::min_element(divergences.begin(), divergences.end()) + kDivergenceTie;
  const auto is_least = [&](double value) { return value <= least; };
  return std::find_if(divergences.begin(), divergences.end(), is_least) - divergences.begin();
}

inline int64_t lastOfLeast(const std::vector<double>& divergences) {
  const std::vector<double> reversed(divergences.rbegin(), divergences.rend());
  return static_cast<int64_t>(divergences.size()) - 1 - firstOfLeast(reversed);
}

} // namespace jit_passes
