// jit_passes::observe_histogram: range and histogram of a value; see histogram.h for the bins.
//
// The `range` buffer has the four entries of every observer, then exponent and offset of the
// histogram's layout; `histogram` is int64 [bins].
#include "histogram.h"
#include "observation.h"

namespace jit_passes {
namespace {

enum HistogramEntry : int64_t { kExponent = 4, kOffset = 5 };

void observeHistogram(
    const at::Tensor& x, at::Tensor range, at::Tensor histogram, c10::string_view name, c10::string_view) {
  double* state = range.mutable_data_ptr<double>();
  if (!observeShape(x, state)) {
    return;
  }
  const auto values = valuesOf(x);
  const auto [low, high] = minMaxOf(values, name);
  const int64_t bins = histogram.numel();
  int64_t* counts = histogram.mutable_data_ptr<int64_t>();
  const bool first = state[kMin] > state[kMax];
  const float min = first ? low : std::min<float>(state[kMin], low);
  const float max = first ? high : std::max<float>(state[kMax], high);
  const auto layout = HistogramLayout::fit(min, max, bins);
  if (!first) {
    const HistogramLayout old{static_cast<int>(state[kExponent]), static_cast<int64_t>(state[kOffset])};
    rebin(counts, bins, old, layout);
  }
  count(values.const_data_ptr<float>(), values.numel(), counts, bins, layout);
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
