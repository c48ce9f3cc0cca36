// jit_passes::observe_histogram: range and histogram of a value; see histogram.h for the bins.
//
// The `range` buffer has the four entries of every observer, then exponent and offset of the
// histogram's layout; `histogram` is int64 [bins].
#include "histogram.h"
#include "observation.h"

namespace jit_passes {
namespace {

enum HistogramEntry : int64_t { kExponent = 4, kOffset = 5 };

constexpr int64_t kGrain = 1 << 15; // below, a second thread costs more than it saves

void observeHistogram(
    const at::Tensor& x, at::Tensor range, at::Tensor histogram, c10::string_view name, c10::string_view) {
  double* state = range.mutable_data_ptr<double>();
  if (!observeShape(x, state)) {
    return;
  }
  const auto values = valuesOf(x);
  const float* data = values.const_data_ptr<float>();
  const int64_t bins = histogram.numel(), size = values.numel();
  const bool first = state[kMin] > state[kMax];
  const MinMax before{static_cast<float>(state[kMin]), static_cast<float>(state[kMax])};

  const int64_t workers = std::clamp<int64_t>(size / kGrain, 1, at::get_num_threads());
  std::vector<HistogramCounter> counters(workers, HistogramCounter(bins, before));
  at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      const int64_t start = size * worker / workers, stop = size * (worker + 1) / workers;
      counters[worker].add(data + start, stop - start);
    }
  });
  Extremes seen;
  for (const auto& counter : counters) {
    seen.merge(counter.seen());
  }
  checkFinite(seen, name);

  const float min = std::min(before.min, seen.min), max = std::max(before.max, seen.max);
  const auto layout = HistogramLayout::fit(min, max, bins);
  std::vector<int64_t> counts(bins, 0);
  if (!first) {
    const HistogramLayout old{static_cast<int>(state[kExponent]), static_cast<int64_t>(state[kOffset])};
    addCounts(histogram.const_data_ptr<int64_t>(), old, counts.data(), layout, bins);
  }
  for (auto& counter : counters) {
    counter.moveTo(counts.data(), layout);
  }
  std::copy(counts.begin(), counts.end(), histogram.mutable_data_ptr<int64_t>());
  state[kMin] = min;
  state[kMax] = max;
  state[kExponent] = layout.exponent;
  state[kOffset] = static_cast<double>(layout.offset);
}

const RegisterOp op{"observe_histogram", "Count the values into bins that merge exactly."};

TORCH_LIBRARY_FRAGMENT(jit_passes, m) {
  m.def("observe_histogram(Tensor x, Tensor(a!) range, Tensor(b!) histogram, str name, str spec) -> ()");
}

TORCH_LIBRARY_IMPL(jit_passes, CPU, m) { m.impl("observe_histogram", observeHistogram); }

} // namespace
} // namespace jit_passes
