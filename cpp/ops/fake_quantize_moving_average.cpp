// jit_passes::fake_quantize_moving_average: fake_quantize with a scale that follows the data.
//
//   range        = [min x, max x] at first, then (1 - c) * range + c * [min x, max x], if observe
//   [low, high]  = range, widened to contain 0
//   affine:        scale = (high - low) / (quant_max - quant_min)
//                  zero_point = quant_min - round(low / scale), within [quant_min, quant_max]
//   symmetric:     scale = 2 max(-low, high) / (quant_max - quant_min)
//                  zero_point = the middle of [quant_min, quant_max], rounded up
//   power_of_two:  scale = 2^ceil(log2(max(high / quant_max, low / quant_min))), zero_point = 0
//                  (the second term only where quant_min < 0)
//
// With pair_sums, ranges of channels are widened to the sums of neighbouring values, as by observe_pair_sums. The
// ranks of a process group agree on the range of each batch.
//
// With a fold, one number for each channel along fold_axis, x * fold is observed and quantized, and the result is
// divided by fold. So x * fold is the weight of a convolution with the batch norm behind it folded in. The product
// is never computed. The range is the range of each channel of x, times fold. fq(x * fold) / fold is x
// fake-quantized with scale / fold, where a negative number mirrors the grid. The zero point must be symmetric for
// that, so there is no affine scheme. The fold's gradient comes with the gradient of scale / fold.
//
// The affine and symmetric parameters equal the formulas of jit_passes/specification/qparams.py, with the floor of
// 2^-23 (float32's epsilon). The power of two is the smallest without clipping. Its floor is 2^-126, the smallest
// normal float32, whose reciprocal is finite: a range of zeros gives it.
//
// The formula is (1 - c) * range + c * x rather than range + c * (x - range), so that c = 1 gives x to the bit.
//
// On the CPU a NaN, an infinity and a range without any number are errors. On other devices the check would wait for
// the device: there, all three give NaN.
#include "batch_range.h"
#include "fake_quantize.h"
#include "training.h"

namespace jit_passes {
namespace {

using at::Tensor;
using c10::string_view;

constexpr double kSmallestPower = 0x1p-126, kSmallestFolded = 0x1p-60;

enum class Scheme { Affine, Symmetric, PowerOfTwo };

Scheme readScheme(string_view qscheme, Axis axis) {
  static const std::unordered_map<std::string, std::pair<Scheme, bool>> schemes{
      {"per_tensor_affine", {Scheme::Affine, false}},
      {"per_tensor_symmetric", {Scheme::Symmetric, false}},
      {"per_tensor_power_of_two", {Scheme::PowerOfTwo, false}},
      {"per_channel_affine", {Scheme::Affine, true}},
      {"per_channel_symmetric", {Scheme::Symmetric, true}},
      {"per_channel_power_of_two", {Scheme::PowerOfTwo, true}}};
  const auto found = schemes.find(std::string(qscheme));
  TORCH_CHECK(
      found != schemes.end(),
      "qscheme is per_tensor_ or per_channel_ with affine, symmetric or power_of_two, not '", qscheme, "'");
  const auto [scheme, per_channel] = found->second;
  TORCH_CHECK(
      axis.has_value() == per_channel, "ch_axis = ", axis ? std::to_string(*axis) : "None",
      " does not go with ", qscheme);
  return scheme;
}

struct Target {
  Scheme scheme;
  int64_t quant_min;
  int64_t quant_max;
};

int64_t middleOf(int64_t quant_min, int64_t quant_max) { return (quant_min + quant_max + 1) >> 1; }

double powerAtLeast(double value) {
  if (value <= kSmallestPower) {
    return kSmallestPower;
  }
  int exponent = 0;
  const double mantissa = std::frexp(value, &exponent); // in [0.5, 1), exact unlike a logarithm
  return std::ldexp(1.0, mantissa == 0.5 ? exponent - 1 : exponent);
}

// As in jit_passes/specification/qparams.py: the product of two scales is a normal float32.
constexpr double kLeastScale = 0x1p-60, kScaleOfZeros = 0x1p-23;

double usableScale(double scale) { return scale > 0 ? std::max(scale, kLeastScale) : kScaleOfZeros; }

Tensor usableScales(const Tensor& scale) {
  return at::where(at::gt(scale, 0), at::clamp_min(scale, kLeastScale), kScaleOfZeros);
}

// Powers of two in double: numerators of 24 bits over denominators of at most 24 do not round across a power of two.
std::pair<float, int64_t> scaleAndZeroPoint(double low, double high, const Target& target) {
  const auto [scheme, quant_min, quant_max] = target;
  low = std::min(low, 0.0);
  high = std::max(high, 0.0);
  const auto steps = static_cast<double>(quant_max - quant_min);
  switch (scheme) {
    case Scheme::PowerOfTwo: {
      const double above = quant_max > 0 ? high / quant_max : 0.0;
      const double below = quant_min < 0 ? low / quant_min : 0.0;
      return {static_cast<float>(powerAtLeast(std::max(above, below))), 0};
    }
    case Scheme::Symmetric:
      return {
          static_cast<float>(usableScale(2 * std::max(-low, high) / steps)), middleOf(quant_min, quant_max)};
    default: break;
  }
  // Each operation rounds to float32, as in PyTorch's observers.
  const auto span = static_cast<float>(high - low);
  const auto quotient = static_cast<float>((std::isfinite(span) ? span : high - low) / steps);
  const auto scale = static_cast<float>(usableScale(quotient));
  const auto zero_point = quant_min - static_cast<int64_t>(std::nearbyint(static_cast<float>(low / scale)));
  return {scale, std::min(std::max(zero_point, quant_min), quant_max)};
}

void checkArguments(
    const Tensor& x, const Tensor& range, double averaging_constant, int64_t quant_min, int64_t quant_max,
    Axis axis, string_view name) {
  TORCH_CHECK(
      x.is_floating_point(), "only floating-point tensors are quantized, and '", name, "' is ",
      x.scalar_type());
  TORCH_CHECK(
      quant_min < quant_max && quant_min <= 0 && quant_max > 0, "the range [", quant_min, ", ", quant_max,
      "] of '", name, "' is empty or does not hold 0 and a number above it");
  TORCH_CHECK(
      averaging_constant > 0 && averaging_constant <= 1, "averaging_constant is in (0, 1], not ",
      averaging_constant);
  const bool fits = axis ? range.dim() == 2 && range.size(0) == 2 && range.size(1) == x.size(*axis)
                         : range.dim() == 1 && range.size(0) == 2;
  TORCH_CHECK(
      fits && range.is_floating_point(), "the value '", name, "' has shape ", x.sizes(),
      " and a range of shape ", range.sizes(),
      ": it must be float with shape [2], or [2, channels] with a ch_axis");
}

Observed checkObserved(
    const Tensor& x, const std::optional<Tensor>& fold, int64_t fold_axis, Scheme scheme, Axis axis,
    bool pair_sums, string_view group, string_view name) {
  TORCH_CHECK(
      !pair_sums || axis, "sums of neighbouring values are within channels: give '", name, "' a ch_axis");
  TORCH_CHECK(
      !fold || scheme != Scheme::Affine, "'", name,
      "' is the weight before a batch norm, which may mirror it: use a symmetric scheme or powers of two");
  return {fold, fold ? checkedFoldAxis(x, *fold, fold_axis, axis, name) : 0, axis, pair_sums, group, name};
}

std::tuple<Tensor, Tensor> qparamsCpu(
    const Tensor& x, const Tensor& range, const std::optional<Tensor>& fold, int64_t fold_axis, bool observe,
    double averaging_constant, bool pair_sums, int64_t quant_min, int64_t quant_max, string_view qscheme,
    Axis ch_axis, string_view group, string_view name) {
  const auto axis = wrapAxis(ch_axis, x);
  checkArguments(x, range, averaging_constant, quant_min, quant_max, axis, name);
  const Target target{readScheme(qscheme, axis), quant_min, quant_max};
  const auto observed = checkObserved(x, fold, fold_axis, target.scheme, axis, pair_sums, group, name);
  const int64_t channels = axis ? x.size(*axis) : 1;
  auto scale = at::ones({channels}, at::kFloat), zero_point = at::zeros({channels}, at::kLong);
  const auto state = range.to(at::kFloat).contiguous(); // the buffer itself, unless the model was cast
  float *low = state.mutable_data_ptr<float>(), *high = low + channels;
  if (observe) {
    const auto keep = static_cast<float>(1 - averaging_constant),
               take = static_cast<float>(averaging_constant);
    const auto seen = rangeOfBatch(x, observed);
    const float *least = seen.const_data_ptr<float>(), *largest = least + channels;
    for (int64_t i = 0; i < channels; ++i) {
      if (least[i] <= largest[i]) { // otherwise no rank had a number
        const bool first = low[i] > high[i];
        low[i] = first ? least[i] : keep * low[i] + take * least[i];
        high[i] = first ? largest[i] : keep * high[i] + take * largest[i];
      }
    }
    if (!state.is_same(range)) {
      range.copy_(state);
    }
  }
  if (x.numel() == 0) {
    return {scale, zero_point}; // nothing was seen
  }
  for (int64_t i = 0; i < channels; ++i) {
    checkCaller(
        low[i] <= high[i], "no range of the value '", name, "' is known: run a batch in training mode first");
    checkCaller(
        std::isfinite(low[i]) && std::isfinite(high[i]), "the range of the value '", name, "' is [", low[i],
        ", ", high[i], "]: training has diverged; lower the learning rate, and resume from a checkpoint");
    const auto [step, zero] = scaleAndZeroPoint(low[i], high[i], target);
    scale.mutable_data_ptr<float>()[i] = step;
    zero_point.mutable_data_ptr<int64_t>()[i] = zero;
  }
  return {scale, zero_point};
}

Tensor powerAtLeast(const Tensor& value) {
  const auto [mantissa, exponent] = at::frexp(at::clamp_min(value, kSmallestPower));
  return at::pow(2.0, (exponent - at::eq(mantissa, 0.5).to(exponent.scalar_type())).to(at::kDouble));
}

std::tuple<Tensor, Tensor> qparamsByOperators(
    const Tensor& x, const Tensor& range, const std::optional<Tensor>& fold, int64_t fold_axis, bool observe,
    double averaging_constant, bool pair_sums, int64_t quant_min, int64_t quant_max, string_view qscheme,
    Axis ch_axis, string_view group, string_view name) {
  const auto axis = wrapAxis(ch_axis, x);
  checkArguments(x, range, averaging_constant, quant_min, quant_max, axis, name);
  const auto scheme = readScheme(qscheme, axis);
  const auto observed = checkObserved(x, fold, fold_axis, scheme, axis, pair_sums, group, name);
  if (observe && (x.numel() > 0 || !group.empty())) {
    const auto seen = rangeOfBatchByOperators(x, observed).reshape(range.sizes());
    const auto first = at::gt(range[0], range[1]), nothing = at::gt(seen[0], seen[1]); // false for a NaN
    const auto averaged = (1 - averaging_constant) * range + averaging_constant * seen;
    range.copy_(at::where(nothing, range, at::where(first, seen, averaged)));
  }
  const auto state = range.to(at::kDouble);
  const auto reached = at::logical_and(at::le(state[0], state[1]), at::isfinite(state[1] - state[0]));
  const auto low = at::clamp_max(state[0], 0), high = at::clamp_min(state[1], 0);
  const auto steps = static_cast<double>(quant_max - quant_min);
  Tensor scale, zero_point;
  if (scheme == Scheme::PowerOfTwo) {
    const auto above = high / quant_max;
    scale = powerAtLeast(quant_min < 0 ? at::maximum(above, low / quant_min) : above);
    zero_point = at::zeros_like(scale);
  } else if (scheme == Scheme::Symmetric) {
    scale = usableScales(2 * at::maximum(-low, high) / steps);
    zero_point = at::full_like(scale, static_cast<double>(middleOf(quant_min, quant_max)));
  } else {
    const auto rounded = [](const Tensor& value) { return value.to(at::kFloat).to(at::kDouble); };
    const auto span = rounded(high - low);
    scale = at::where(at::isfinite(span), span, high - low) / steps;
    scale = usableScales(rounded(scale));
    zero_point = at::clamp(quant_min - at::round(rounded(low / scale)), quant_min, quant_max);
  }
  const auto unknown = at::full({}, std::numeric_limits<double>::quiet_NaN(), scale.options());
  scale = at::where(reached, scale, unknown).to(at::kFloat);
  return {scale.reshape({-1}), at::nan_to_num(zero_point).to(at::kLong).reshape({-1})};
}

// Sizes may be symbols here, which cannot be compared.
std::tuple<Tensor, Tensor> qparamsMeta(
    const Tensor& x, const Tensor& range, const std::optional<Tensor>&, int64_t, bool, double, bool, int64_t,
    int64_t, string_view, Axis ch_axis, string_view, string_view) {
  const auto axis = wrapAxis(ch_axis, x);
  const auto channels = axis ? x.sym_size(*axis) : c10::SymInt(1);
  const auto like = range.options();
  return {
      at::empty_symint({channels}, like.dtype(at::kFloat)),
      at::empty_symint({channels}, like.dtype(at::kLong))};
}

// Two operators with kernels of their own: the first writes to the range and has no gradient, the
// second has one and writes to nothing.
Tensor fakeQuantizeMovingAverage(
    const Tensor& x, const Tensor& range, const std::optional<Tensor>& fold, int64_t fold_axis, bool observe,
    bool enabled, double averaging_constant, bool pair_sums, int64_t quant_min, int64_t quant_max,
    string_view qscheme, Axis ch_axis, string_view rounding, string_view group, string_view name,
    string_view) {
  static const auto op = findOperator<decltype(qparamsCpu)>("jit_passes::moving_average_qparams");
  if (!enabled && !observe) {
    return x.clone();
  }
  const auto [scale, zero_point] = callWithoutGradient(
      op, x, range, fold, fold_axis, observe, averaging_constant, pair_sums, quant_min, quant_max, qscheme,
      ch_axis, group, name);
  if (!enabled) {
    return x.clone();
  }
  if (!fold) {
    return callFakeQuantize(x, scale, zero_point, quant_min, quant_max, ch_axis, rounding);
  }
  const bool symmetric = readScheme(qscheme, ch_axis) == Scheme::Symmetric;
  const int64_t zero = symmetric ? middleOf(quant_min, quant_max) : 0;
  // A channel of zeros has the smallest power of two, whose quotient by fold may have no inverse.
  const auto folded = foldScale(at::clamp_min(scale, kSmallestFolded), *fold);
  return callFakeQuantizeLearnable(x, folded, quant_min - zero, quant_max - zero, fold_axis, rounding);
}

const RegisterOp moving_average_qparams_op{
    "moving_average_qparams(Tensor x, Tensor(a!) range, Tensor? fold, int fold_axis, bool observe, "
    "float averaging_constant, bool pair_sums, int quant_min, int quant_max, str qscheme, int? ch_axis, "
    "str group, str name) -> (Tensor, Tensor)",
    "Scale and zero point from a moving average of each batch's range.", onCpu(qparamsCpu),
    onAnyDevice(qparamsByOperators), onMeta(qparamsMeta)};
const RegisterOp fake_quantize_moving_average_op{
    "fake_quantize_moving_average(Tensor x, Tensor(a!) range, Tensor? fold, int fold_axis, bool observe, "
    "bool enabled, float averaging_constant, bool pair_sums, int quant_min, int quant_max, str qscheme, "
    "int? ch_axis, str rounding, str group, str name, str spec) -> Tensor",
    "Fake-quantize with the moving average of each batch's range.", composed(fakeQuantizeMovingAverage)};

} // namespace

Tensor scaleOfRange(const Tensor& range, int64_t quant_min, int64_t quant_max, string_view qscheme) {
  // The range itself serves as the tensor: it has the right number of channels.
  const auto axis = range.dim() == 2 ? Axis(1) : std::nullopt;
  const auto [scale, zero_point] = qparamsByOperators(
      range, range, std::nullopt, 0, /*observe=*/false, 1.0, /*pair_sums=*/false, quant_min, quant_max,
      qscheme, axis, "", "");
  return scale;
}

} // namespace jit_passes
