#include "batch_range.h"

#include "channels.h"
#include "observation.h"
#include "process_group.h"

namespace jit_passes {

using at::Tensor;
using c10::string_view;

namespace {

// Makes the result from the range of each channel of x, or of the tensor.
Tensor agreedRange(Tensor range, const Observed& observed) {
  if (observed.fold) {
    const auto ends = range * observed.fold->to(range.options()).reshape({-1});
    range = at::stack({at::minimum(ends[0], ends[1]), at::maximum(ends[0], ends[1])});
    if (!observed.axis) {
      range = at::stack({range[0].min(), range[1].max()}).unsqueeze(1);
    }
  }
  if (observed.group.empty()) {
    return range;
  }
  const auto reached = agree(at::stack({-range[0], range[1]}), Agreement::Largest, observed.group);
  return at::stack({-reached[0], reached[1]});
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Tensor channelRows(const Tensor& values, int64_t axis) {
  return values.transpose(0, axis).reshape({values.size(axis), -1}).contiguous();
}

// The smallest and largest value of each channel. Channels that are not interleaved need no copy.
std::vector<MinMax> measure(const Tensor& x, Axis axis, bool pair_sums, string_view name) {
  if (x.numel() == 0) {
    return std::vector<MinMax>(axis ? x.size(*axis) : 1, {kInfinity, -kInfinity});
  }
  const auto values = valuesOf(x);
  if (pair_sums) {
    return minMaxOfPairSums(channelRows(values, *axis), name);
  }
  const auto layout = channelLayout(values, axis);
  if (layout.channels == 1) {
    return {minMaxOf(values, name)};
  }
  if (layout.inner == 1 && layout.outer > 1) {
    return minMaxOfRows(channelRows(values, *axis), name);
  }
  std::vector<Extremes> seen(layout.channels);
  const float* data = values.const_data_ptr<float>();
  at::parallel_for(0, layout.channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t channel = begin; channel < end; ++channel) {
      for (int64_t i = 0; i < layout.outer; ++i) {
        seen[channel].add(data + (i * layout.channels + channel) * layout.inner, layout.inner);
      }
    }
  });
  return checkedRanges(seen, name);
}

} // namespace

Tensor rangeOfBatch(const Tensor& x, const Observed& observed) {
  const auto along = observed.fold ? observed.fold_axis : observed.axis;
  const auto seen = measure(x, along, observed.pair_sums, observed.name);
  auto range = at::empty({2, static_cast<int64_t>(seen.size())}, at::kFloat);
  float *low = range.mutable_data_ptr<float>(), *high = low + seen.size();
  for (size_t i = 0; i < seen.size(); ++i) {
    low[i] = seen[i].min;
    high[i] = seen[i].max;
  }
  return agreedRange(range, observed);
}

Tensor rangeOfBatchByOperators(const Tensor& x, const Observed& observed) {
  const auto along = observed.fold ? observed.fold_axis : observed.axis;
  const int64_t channels = along ? x.size(*along) : 1;
  if (x.numel() == 0) {
    const auto least = at::full({1, channels}, kInfinity, x.options().dtype(at::kFloat));
    return agreedRange(at::cat({least, -least}), observed);
  }
  const auto values = x.to(at::kFloat);
  const auto rows = (along ? values.transpose(0, *along) : values).reshape({channels, -1});
  auto low = at::amin(rows, 1), high = at::amax(rows, 1);
  const int64_t pairs = rows.size(1) / 2;
  if (observed.pair_sums && pairs > 0) {
    const auto neighbours = rows.narrow(1, 0, 2 * pairs).reshape({channels, pairs, 2});
    low = at::minimum(low, at::amin(neighbours.clamp_max(0).sum(2), 1));
    high = at::maximum(high, at::amax(neighbours.clamp_min(0).sum(2), 1));
    low = at::clamp_max(low, 0); // an empty sum is 0
    high = at::clamp_min(high, 0);
  }
  return agreedRange(at::stack({low, high}), observed);
}

} // namespace jit_passes
