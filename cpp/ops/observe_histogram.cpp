// jit_passes::observe_histogram and its relatives: range and histogram of a value; see histogram.h for
// the bins.
//
//   histogram        counts the values; a value that is not finite is an error
//   profile          a histogram for values that may never be quantized: an infinity, as in masks, makes the range
//                    NaN for good, and only a NaN is an error
//   merge_histogram  adds the range and counts of one observer to another observer's, exactly
//
// The `range` buffer has the four entries of every observer, then exponent and offset of the histogram's layout;
// `histogram` is int64 [bins]. Exponent and offset have no meaning until a value is counted, except that a profile's
// offset becomes 1 once the value was a floating-point tensor, even an empty one.
#include "histogram.h"
#include "observation.h"

namespace jit_passes {
namespace {

using c10::string_view;

enum HistogramEntry : int64_t { kExponent = 4, kOffset = 5 };

constexpr int64_t kHistogramGrain = 1 << 15; // below, a second thread costs more than it saves

HistogramLayout layoutOf(const double* state) {
  return {static_cast<int>(state[kExponent]), static_cast<int64_t>(state[kOffset])};
}

bool isEmpty(const double* state) { return state[kMin] > state[kMax]; }

// Writes the range, and the counts of both layouts.
void write(
    double* state, at::Tensor& histogram, float min, float max, HistogramLayout layout,
    const std::vector<int64_t>& counts) {
  std::copy(counts.begin(), counts.end(), histogram.mutable_data_ptr<int64_t>());
  state[kMin] = min;
  state[kMax] = max;
  state[kExponent] = layout.exponent;
  state[kOffset] = static_cast<double>(layout.offset);
}

// The range of all values, and their counts in the layout that covers these and earlier values.
struct Counted {
  Extremes seen;
  HistogramLayout layout;
  std::vector<int64_t> counts;
};

Counted countInMemory(const at::Tensor& values, MinMax before, int64_t bins) {
  const float* data = values.const_data_ptr<float>();
  const int64_t size = values.numel();
  const int64_t workers = std::clamp<int64_t>(size / kHistogramGrain, 1, at::get_num_threads());
  std::vector<HistogramCounter> counters(workers, HistogramCounter(bins, before));
  at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      const int64_t start = size * worker / workers, stop = size * (worker + 1) / workers;
      counters[worker].add(data + start, stop - start);
    }
  });
  Counted all;
  for (const auto& counter : counters) {
    all.seen.merge(counter.seen());
  }
  if (all.seen.finite) {
    all.layout =
        HistogramLayout::fit(std::min(before.min, all.seen.min), std::max(before.max, all.seen.max), bins);
    all.counts.resize(bins);
    for (auto& counter : counters) {
      counter.moveTo(all.counts.data(), all.layout);
    }
  }
  return all;
}

// The width of a bin is a power of two, so products are exact.
Counted countByOperators(const at::Tensor& values, MinMax before, int64_t bins) {
  Counted all;
  all.seen = extremesOfRows(values.reshape({1, -1})).front();
  if (all.seen.finite) {
    all.layout =
        HistogramLayout::fit(std::min(before.min, all.seen.min), std::max(before.max, all.seen.max), bins);
    const auto steps =
        at::floor(values.reshape({-1}).to(at::kDouble) * std::ldexp(1.0, -all.layout.exponent));
    const auto found = (steps - static_cast<double>(all.layout.offset)).to(at::kLong);
    const auto counts = at::bincount(found, {}, bins).to(at::kCPU);
    all.counts.assign(counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + bins);
  }
  return all;
}

// Adds all values, or none if one is not finite. Returns their extremes.
template <auto count_values>
Extremes count(const at::Tensor& values, double* state, at::Tensor& histogram) {
  const int64_t bins = histogram.numel();
  const MinMax before{static_cast<float>(state[kMin]), static_cast<float>(state[kMax])};
  auto all = count_values(values, before, bins);
  if (all.seen.finite) {
    if (!isEmpty(state)) {
      addCounts(histogram.const_data_ptr<int64_t>(), layoutOf(state), all.counts.data(), all.layout, bins);
    }
    const auto& seen = all.seen;
    write(
        state, histogram, std::min(before.min, seen.min), std::max(before.max, seen.max), all.layout,
        all.counts);
  }
  return all.seen;
}

template <auto count_values>
void observeHistogram(
    const at::Tensor& x, at::Tensor range, at::Tensor histogram, string_view name, string_view) {
  const auto change = [&](at::Tensor& own, at::Tensor& counts) {
    double* state = own.mutable_data_ptr<double>();
    if (observeShape(x, state)) {
      checkFinite(count<count_values>(valuesOf(x), state, counts), name);
    }
  };
  changeOnCpu(change, range, histogram);
}

template <auto count_values>
void observeProfile(
    const at::Tensor& x, at::Tensor range, at::Tensor histogram, string_view name, string_view) {
  const auto change = [&](at::Tensor& own, at::Tensor& counts) {
    double* state = own.mutable_data_ptr<double>();
    const bool measurable = observeShape(x, state);
    if (!measurable || std::isnan(state[kMin])) {
      if (x.is_floating_point() && isEmpty(state)) {
        state[kOffset] = 1;
      }
      return;
    }
    const auto values = valuesOf(x);
    const auto seen = count<count_values>(values, state, counts);
    if (!seen.finite) {
      if (values.isnan().any().item<bool>()) {
        checkFinite(seen, name);
      }
      state[kMin] = state[kMax] = std::numeric_limits<double>::quiet_NaN();
      counts.zero_();
    }
  };
  changeOnCpu(change, range, histogram);
}

void mergeOnCpu(
    const at::Tensor& range, const at::Tensor& histogram, at::Tensor& into_range,
    at::Tensor& into_histogram) {
  const double* from = range.const_data_ptr<double>();
  double* into = into_range.mutable_data_ptr<double>();
  into[kLowestRank] = std::min(into[kLowestRank], from[kLowestRank]);
  into[kHighestRank] = std::max(into[kHighestRank], from[kHighestRank]);
  if (std::isnan(from[kMin]) || std::isnan(into[kMin])) {
    into[kMin] = into[kMax] = std::numeric_limits<double>::quiet_NaN();
    into_histogram.zero_();
    return;
  }
  if (isEmpty(from)) {
    if (isEmpty(into)) {
      into[kOffset] = std::max(into[kOffset], from[kOffset]);
    }
    return;
  }
  const int64_t bins = into_histogram.numel();
  const auto min = static_cast<float>(std::min(from[kMin], into[kMin]));
  const auto max = static_cast<float>(std::max(from[kMax], into[kMax]));
  const auto layout = HistogramLayout::fit(min, max, bins);
  std::vector<int64_t> counts(bins, 0);
  const auto add = [&](const double* state, const at::Tensor& added) {
    const auto own = layoutOf(state);
    TORCH_CHECK(
        own.exponent <= layout.exponent, "bins of width 2^", own.exponent, " cannot be split into ", bins,
        " bins of width 2^", layout.exponent, ": merge histograms of as many bins, or into one of fewer");
    const int64_t* own_counts = added.const_data_ptr<int64_t>();
    for (int64_t bin = 0; bin < added.numel(); ++bin) { // buffers from a file may be wrong
      const double edge = own.edge(bin);
      TORCH_CHECK(
          own_counts[bin] == 0 || (edge >= layout.edge(0) && edge < layout.edge(bins)),
          "a histogram counts values at ", edge, ", outside of its range [", state[kMin], ", ", state[kMax],
          "]");
    }
    addCounts(own_counts, own, counts.data(), layout, added.numel());
  };
  add(from, histogram);
  if (!isEmpty(into)) {
    add(into, into_histogram);
  }
  write(into, into_histogram, min, max, layout, counts);
}

void mergeHistogram(
    const at::Tensor& range, const at::Tensor& histogram, at::Tensor into_range, at::Tensor into_histogram) {
  const auto from = range.to(at::kCPU), counts = histogram.to(at::kCPU);
  const auto merge = [&](at::Tensor& own, at::Tensor& own_counts) {
    mergeOnCpu(from, counts, own, own_counts);
  };
  changeOnCpu(merge, into_range, into_histogram);
}

const RegisterOp observe_histogram_op{
    "observe_histogram(Tensor x, Tensor(a!) range, Tensor(b!) histogram, str name, str spec) -> ()",
    "Count the values into bins that merge exactly.", onCpu(observeHistogram<countInMemory>),
    onAnyDevice(observeHistogram<countByOperators>)};
const RegisterOp observe_profile_op{
    "observe_profile(Tensor x, Tensor(a!) range, Tensor(b!) histogram, str name, str spec) -> ()",
    "Count the values of a float tensor into histogram bins for a profile; ignore others.",
    onCpu(observeProfile<countInMemory>), onAnyDevice(observeProfile<countByOperators>)};
const RegisterOp merge_histogram_op{
    "merge_histogram(Tensor range, Tensor histogram, Tensor(a!) into_range, Tensor(b!) into_histogram) -> "
    "()",
    "Add one observer's counts to another observer's.", onAnyDevice(mergeHistogram)};

} // namespace
} // namespace jit_passes
