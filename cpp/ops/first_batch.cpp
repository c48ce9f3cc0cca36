#include "first_batch.h"

#include <bit>

#include "grid.h"
#include "histogram.h"
#include "observation.h"
#include "process_group.h"

namespace jit_passes {
namespace {

using at::Tensor;

constexpr int64_t kBins = 2048;

Tensor rowsOf(const Tensor& x, const std::optional<Tensor>& fold, int64_t fold_axis, Axis axis) {
  auto values = x.detach().to(at::kCPU, at::kFloat);
  if (fold) {
    values = values * alongAxis(fold->detach().to(at::kCPU, at::kFloat), values, fold_axis);
  }
  const int64_t channels = axis ? values.size(*axis) : 1;
  if (axis) {
    values = values.transpose(0, *axis);
  }
  return values.reshape({channels, values.numel() / std::max<int64_t>(channels, 1)}).contiguous();
}

std::vector<double> listOf(const Tensor& values) {
  const double* data = values.const_data_ptr<double>();
  return {data, data + values.numel()};
}

double square(double value) { return value * value; }

} // namespace

struct FirstBatch::Histogram {
  Tensor counts;
  HistogramLayout layout;
  double low, high; // the range seen

  // The counts of |x| in at most as many bins, and the width of a bin, as `magnitudes` of
  // jit_passes/observers/bins.py.
  std::pair<Tensor, double> magnitudes() const {
    const int64_t* from = counts.const_data_ptr<int64_t>();
    const auto index = [&](int64_t bin, int shift) {
      const int64_t coarse = (layout.offset + bin) >> shift;
      return coarse < 0 ? -coarse - 1 : coarse;
    };
    int64_t first = 0, last = kBins - 1;
    while (from[first] == 0) {
      ++first;
    }
    while (from[last] == 0) {
      --last;
    }
    int shift = 0;
    while (std::max(index(first, shift), index(last, shift)) >= kBins) {
      ++shift;
    }
    auto folded = at::zeros({std::max(index(first, shift), index(last, shift)) + 1}, at::kLong);
    int64_t* to = folded.mutable_data_ptr<int64_t>();
    for (int64_t bin = first; bin <= last; ++bin) {
      to[index(bin, shift)] += from[bin];
    }
    return {folded, std::ldexp(1.0, layout.exponent + shift)};
  }
};

FirstBatch::FirstBatch(
    const Tensor& x, const std::optional<Tensor>& fold, int64_t fold_axis, Axis axis, c10::string_view group,
    c10::string_view name)
    : rows_(rowsOf(x, fold, fold_axis, axis)), device_(x.device()), group_(group) {
  const int64_t channels = rows_.size(0), count = rows_.size(1);
  auto reached = at::empty({2, channels}, at::kDouble); // -min and max: one maximum serves both
  double *below = reached.mutable_data_ptr<double>(), *above = below + channels;
  for (int64_t i = 0; i < channels; ++i) {
    Extremes seen;
    seen.add(rows_.const_data_ptr<float>() + i * count, count);
    below[i] = seen.finite ? -seen.min : std::numeric_limits<double>::infinity();
    above[i] = seen.max;
  }
  reached = agreed(reached, /*sum=*/false);
  high_ = listOf(reached[1]);
  low_ = listOf(-reached[0]);
  for (const double low : low_) {
    Extremes seen;
    seen.finite = low != -std::numeric_limits<double>::infinity();
    checkFinite(seen, name);
  }
}

bool FirstBatch::empty() const { return high_.empty() || low_.front() > high_.front(); }

Tensor FirstBatch::agreed(const Tensor& values, bool sum) const {
  const auto agreement = sum ? Agreement::Sum : Agreement::Largest;
  return group_.empty() ? values : agree(values.to(device_), agreement, group_).to(at::kCPU);
}

// The sum of term(number, channel) over the numbers of each channel.
template <typename Term>
std::vector<double> FirstBatch::means(const Term& term) const {
  const int64_t channels = rows_.size(0), count = rows_.size(1);
  auto sums = at::full({2, channels}, static_cast<double>(count), at::kDouble);
  double* data = sums.mutable_data_ptr<double>();
  at::parallel_for(0, channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* row = rows_.const_data_ptr<float>() + i * count;
      data[i] = 0;
      for (int64_t k = 0; k < count; ++k) {
        data[i] += term(static_cast<double>(row[k]), i);
      }
    }
  });
  sums = agreed(sums, /*sum=*/true);
  return listOf(sums[0] / sums[1]);
}

std::vector<double> FirstBatch::meanMagnitudes() const {
  return means([](double x, int64_t) { return std::abs(x); });
}

std::vector<double> FirstBatch::thresholds(
    c10::string_view rule, int64_t quant_min, int64_t quant_max, double shift) const {
  TORCH_CHECK(
      rule == "max" || rule == "three_sigma" || rule == "klj",
      "values begin by the rule max, three_sigma, klj, "
      "mean_squared_error, or lsq where scales train, not '",
      rule, "'");
  if (rule == "klj") {
    return {leastDivergence(quant_min, quant_max)};
  }
  std::vector<double> result;
  if (rule == "max") {
    std::ranges::transform(low_, high_, std::back_inserter(result), [](double low, double high) {
      return std::max(-low, high);
    });
    return result;
  }
  const auto mean = means([](double x, int64_t) { return x; });
  const auto variance = means([&](double x, int64_t channel) { return square(x - mean[channel]); });
  for (size_t i = 0; i < mean.size(); ++i) {
    result.push_back(std::abs(mean[i] + shift) + 3 * std::sqrt(variance[i]));
  }
  return result;
}

FirstBatch::Histogram FirstBatch::histogram(bool negative) const {
  TORCH_CHECK(
      high_.size() == 1, "klj and mean_squared_error are rules for a whole tensor, and this has ",
      high_.size(), " channels with scales of their own: choose max or three_sigma");
  const auto numbers = negative ? rows_ : rows_.clamp_min(0);
  const double least = negative ? -std::numeric_limits<double>::infinity() : 0;
  const double low = std::max(low_[0], least), high = std::max(high_[0], least);
  const MinMax range{static_cast<float>(low), static_cast<float>(high)};
  const auto layout = HistogramLayout::fit(range.min, range.max, kBins);
  HistogramCounter counter(kBins, range);
  counter.add(numbers.const_data_ptr<float>(), numbers.numel());
  auto counts = at::zeros({kBins}, at::kLong);
  if (numbers.numel() > 0) {
    counter.moveTo(counts.mutable_data_ptr<int64_t>(), layout);
  }
  return {agreed(counts, /*sum=*/true), layout, low, high};
}

double FirstBatch::leastDivergence(int64_t quant_min, int64_t quant_max) const {
  static const auto search = findOperator<int64_t(const Tensor&, int64_t)>("jit_passes::search_range_klj");
  const auto seen = histogram(quant_min < 0);
  const auto [counts, width] = seen.magnitudes();
  const int bits = std::bit_width(static_cast<uint64_t>(quant_max - quant_min));
  const int64_t kept = search.call(counts, int64_t(1) << (quant_min < 0 ? std::max(bits - 1, 1) : bits));
  return std::min((static_cast<double>(kept) + 0.5) * width, std::max(-seen.low, seen.high));
}

std::pair<double, double> FirstBatch::leastSquaredError(
    int64_t quant_min, int64_t quant_max, bool with_offset) const {
  static const auto search = findOperator<std::tuple<double, double>(
      const Tensor&, int64_t, int64_t, double, double, int64_t, int64_t, bool)>(
      "jit_passes::search_range_l2");
  const auto seen = histogram(with_offset || quant_min < 0);
  const auto [low, high] = search.call(
      seen.counts, seen.layout.exponent, seen.layout.offset, seen.low, seen.high, quant_min, quant_max,
      !with_offset && quant_min < 0);
  return {low, high};
}

} // namespace jit_passes
