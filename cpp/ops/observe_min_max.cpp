// jit_passes::observe_min_max and its relatives: running ranges.
//
//   min_max             range = [min(range[0], min x), max(range[1], max x)]
//   moving_average      range = range + c * ([min x, max x] - range), starting at the first batch's
//   per_channel_min_max min_max along an axis: range has shape [2, channels]
//   pair_sums           per_channel_min_max, widened to the sums of neighbouring values 2k and 2k + 1
//   reach               notes only that the value was computed
//   constant            notes only that the value is there: constants are measured when observers are inserted
//   inputs              constant, for a weight; and squares += sum of inputs^2 for each channel of the input that the
//                       weight multiplies, which tells the importance of each weight
//   nothing             notes nothing: the value's parameters are derived from those of other values
//
// They have no results, so the float data flow does not change. `name` and `spec` are the value's name and place,
// which conversion needs, also from a saved file.
#include "observation.h"

namespace jit_passes {
namespace {

using c10::string_view;

template <Measured how>
void observeMinMax(const at::Tensor& x, at::Tensor range, string_view name, string_view) {
  const auto change = [&](at::Tensor& own) {
    double* state = own.mutable_data_ptr<double>();
    if (observeShape(x, state)) {
      const auto [low, high] = minMaxOf(valuesOf(x), name, how);
      state[kMin] = std::min<double>(state[kMin], low);
      state[kMax] = std::max<double>(state[kMax], high);
    }
  };
  changeOnCpu(change, range);
}

template <Measured how>
void observeMovingAverage(
    const at::Tensor& x, at::Tensor range, double averaging_constant, string_view name, string_view) {
  const auto change = [&](at::Tensor& own) {
    double* state = own.mutable_data_ptr<double>();
    if (observeShape(x, state)) {
      const auto [low, high] = minMaxOf(valuesOf(x), name, how);
      const bool first = state[kMin] > state[kMax];
      state[kMin] = first ? low : state[kMin] + averaging_constant * (low - state[kMin]);
      state[kMax] = first ? high : state[kMax] + averaging_constant * (high - state[kMax]);
    }
  };
  changeOnCpu(change, range);
}

// The values as one row for each channel.
at::Tensor channelRows(const at::Tensor& x, const at::Tensor& range, int64_t axis, string_view name) {
  TORCH_CHECK(
      axis < x.dim() && range.size(1) == x.size(axis), "the value '", name, "' has shape ", x.sizes(),
      " and is observed along axis ", axis, " for ", range.size(1), " channels");
  const auto rows = x.detach().to(at::kFloat).transpose(0, axis).reshape({x.size(axis), -1}).contiguous();
  return rows;
}

void widen(const at::Tensor& range, const std::vector<MinMax>& found) {
  const auto change = [&](at::Tensor& own) {
    double *low = own.mutable_data_ptr<double>(), *high = low + own.size(1);
    for (size_t row = 0; row < found.size(); ++row) {
      low[row] = std::min<double>(low[row], found[row].min);
      high[row] = std::max<double>(high[row], found[row].max);
    }
  };
  changeOnCpu(change, range);
}

template <Measured how>
void observePerChannelMinMax(
    const at::Tensor& x, at::Tensor range, int64_t axis, string_view name, string_view) {
  widen(range, minMaxOfRows(channelRows(x, range, axis, name), name, how));
}

template <Measured how>
void observePairSums(const at::Tensor& x, at::Tensor range, int64_t axis, string_view name, string_view) {
  widen(range, minMaxOfPairSums(channelRows(x, range, axis, name), name, how));
}

void observeReach(const at::Tensor& x, at::Tensor range, string_view, string_view) {
  const auto change = [&](at::Tensor& own) {
    double* state = own.mutable_data_ptr<double>();
    // Only into an empty buffer: places of one group share it, and another value may have filled it.
    if (state[kMin] > state[kMax] && observeShape(x, state)) {
      state[kMin] = state[kMax] = 0;
    }
  };
  changeOnCpu(change, range);
}

void observeConstant(
    const at::Tensor&, at::Tensor reached, const at::Tensor&, const std::optional<at::Tensor>&,
    const std::optional<at::Tensor>&, string_view, string_view) {
  changeOnCpu([](at::Tensor& own) { *own.mutable_data_ptr<bool>() = true; }, reached);
}

void observeInputs(
    const at::Tensor&, const at::Tensor& inputs, at::Tensor reached, const at::Tensor&, at::Tensor squares,
    int64_t channel_axis, const std::optional<at::Tensor>&, string_view name, string_view) {
  changeOnCpu([](at::Tensor& own) { *own.mutable_data_ptr<bool>() = true; }, reached);
  if (inputs.numel() == 0) {
    return;
  }
  const int64_t channels = squares.numel();
  TORCH_CHECK(
      inputs.dim() >= -channel_axis && inputs.size(channel_axis) == channels, "the inputs of '", name,
      "' have shape ", inputs.sizes(), ", and not ", channels, " channels along axis ", channel_axis);
  const auto rows = inputs.detach().movedim(channel_axis, 0).reshape({channels, -1}).to(at::kDouble);
  squares.add_(rows.square().sum(1).to(squares.device()).view_as(squares));
}

void observeNothing(const at::Tensor&, at::Tensor, string_view, string_view) {}

const RegisterOp observe_min_max_op{
    "observe_min_max(Tensor x, Tensor(a!) range, str name, str spec) -> ()",
    "Keep the smallest and largest value seen.", onCpu(observeMinMax<Measured::InMemory>),
    onAnyDevice(observeMinMax<Measured::ByOperators>)};
const RegisterOp observe_moving_average_op{
    "observe_moving_average(Tensor x, Tensor(a!) range, float averaging_constant, str name, str spec) -> "
    "()",
    "Keep an exponential moving average of each batch's range.",
    onCpu(observeMovingAverage<Measured::InMemory>),
    onAnyDevice(observeMovingAverage<Measured::ByOperators>)};
const RegisterOp observe_per_channel_min_max_op{
    "observe_per_channel_min_max(Tensor x, Tensor(a!) range, int axis, str name, str spec) -> ()",
    "Keep the smallest and largest value of each channel.",
    onCpu(observePerChannelMinMax<Measured::InMemory>),
    onAnyDevice(observePerChannelMinMax<Measured::ByOperators>)};
const RegisterOp observe_pair_sums_op{
    "observe_pair_sums(Tensor x, Tensor(a!) range, int axis, str name, str spec) -> ()",
    "Keep each channel's range, and that of sums of neighbouring values.",
    onCpu(observePairSums<Measured::InMemory>), onAnyDevice(observePairSums<Measured::ByOperators>)};
const RegisterOp observe_reach_op{
    "observe_reach(Tensor x, Tensor(a!) range, str name, str spec) -> ()",
    "Note that the value was computed, and its rank.", onAnyDevice(observeReach)};
// `codes` are the codes that convert takes for a weight instead of the nearest ones.
const RegisterOp observe_constant_op{
    "observe_constant(Tensor x, Tensor(a!) reached, Tensor range, Tensor? histogram, Tensor? codes, "
    "str name, str spec) -> ()",
    "Note that a constant, which has been measured before, was reached.", onAnyDevice(observeConstant)};
const RegisterOp observe_inputs_op{
    "observe_inputs(Tensor x, Tensor inputs, Tensor(a!) reached, Tensor range, Tensor(b!) squares, "
    "int channel_axis, Tensor? codes, str name, str spec) -> ()",
    "Note that a weight was reached, and sum the squares of its inputs by channel.",
    onAnyDevice(observeInputs)};
// An operator without a buffer to write to would be dead code.
const RegisterOp observe_nothing_op{
    "observe_nothing(Tensor x, Tensor(a!) range, str name, str spec) -> ()",
    "Carry the specification of a value; look at nothing.", onAnyDevice(observeNothing)};

} // namespace
} // namespace jit_passes
