// Loops of fake quantization with trained parameters: all gradients in one pass over memory.
//
//   steps     = (x - offset) / scale
//   dx        = g where inside, else 0
//   d scale   = sum of g * slope over each channel, up to a factor for each channel
//   d offset  = sum of g over each channel, where not inside
//
// inside and slope are functions of steps that each operator defines.
//
// x and the parameters are saved, and steps are computed again. A slope is one number for each element, so saving
// it, or a mask too, would move more memory than x. And x often stays alive anyway, as a parameter or because a
// convolution saves it. Forward and backward move 20 bytes for each float32. The price: a later write to x is an
// error of autograd.
//
// As in fake_quantize, float32 is multiplied by 1 / scale and doubles are divided, so that the gradient sees exactly
// the codes of the forward. Products of float32 are exact in double, and are added in double, over pieces whose
// borders do not depend on the number of threads.
//
// A NaN has gradient 0, and makes the gradient of its scale NaN.
#pragma once

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "rounding.h"
#include "vectorize.h"

namespace jit_passes {

template <typename Number>
struct Slope {
  bool inside;
  Number value;
};

// The rule of LSQ and LSQ+, for round(clip(steps, low, high)) with a straight-through round. Steps exactly at an end
// of the range are outside.
template <typename Rounding>
struct SlopeOfClip {
  template <typename Number>
  static Slope<Number> of(Number steps, Number low, Number high) {
    const bool inside = (steps > low) & (steps < high);
    return {inside, inside ? Rounding::round(steps) - steps : clampTo(steps, low, high)};
  }
  static std::pair<at::Tensor, at::Tensor> of(const at::Tensor& steps, int64_t low, int64_t high) {
    const auto inside = at::logical_and(at::gt(steps, low), at::lt(steps, high));
    return {inside, at::where(inside, Rounding::round(steps) - steps, at::clamp(steps, low, high))};
  }
};

// The sums of each channel, in double on the CPU. `outside` exists only with an offset.
struct TrainedGradients {
  at::Tensor x, slopes, outside;
};

constexpr int64_t kLanes = 64;   // independent sums, since a single sum does not vectorize
constexpr int64_t kPieces = 256; // limits the memory for sums if channels are innermost

// Adds one channel to slopes[0] and outside[0].
template <typename Rule, bool kOffset, typename Number>
JIT_PASSES_VECTORIZED void gradientsOfRow(
    const Number* gradient, const Number* x, Number* result, int64_t count, Number scale, Number offset,
    Number low, Number high, double* slopes, double* outside) {
  const Number inverse_scale = inverseOf(scale);
  double slope_lanes[kLanes] = {}, outside_lanes[kLanes] = {};
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    const int64_t length = count - begin < kLanes ? count - begin : kLanes;
    for (int64_t i = 0; i < length; ++i) {
      const Number g = gradient[begin + i], value = x[begin + i];
      const auto slope = Rule::of(inSteps(kOffset ? value - offset : value, scale, inverse_scale), low, high);
      const Number passed = slope.inside ? g : 0;
      result[begin + i] = passed;
      slope_lanes[i] += static_cast<double>(g) * static_cast<double>(slope.value);
      if constexpr (kOffset) {
        outside_lanes[i] += static_cast<double>(g - passed); // a second conditional would not vectorize
      }
    }
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) {
      slope_lanes[i] += slope_lanes[half + i];
      outside_lanes[i] += outside_lanes[half + i];
    }
  }
  slopes[0] = slope_lanes[0];
  outside[0] = outside_lanes[0];
}

// Channels innermost in memory: each element adds to the sum of its own channel.
template <typename Rule, bool kOffset, typename Number>
JIT_PASSES_VECTORIZED void gradientsAcross(
    const Number* gradient, const Number* x, Number* result, int64_t count, const Number* scales,
    const Number* inverse_scales, const Number* offsets, Number low, Number high, double* slopes,
    double* outside) {
  for (int64_t i = 0; i < count; ++i) {
    const Number g = gradient[i], value = x[i];
    const auto slope =
        Rule::of(inSteps(kOffset ? value - offsets[i] : value, scales[i], inverse_scales[i]), low, high);
    const Number passed = slope.inside ? g : 0;
    result[i] = passed;
    slopes[i] += static_cast<double>(g) * static_cast<double>(slope.value);
    if constexpr (kOffset) {
      outside[i] += static_cast<double>(g - passed);
    }
  }
}

// Calls body(piece, slopes, outside) for all pieces in parallel, each with sums that begin at zero, and adds these
// sums in the order of pieces.
template <typename Body>
std::pair<at::Tensor, at::Tensor> sumOverPieces(
    int64_t pieces, int64_t channels, int64_t elements_of_piece, const Body& body) {
  std::vector<double> sums(2 * pieces * channels);
  at::parallel_for(
      0, pieces, std::max<int64_t>(1, kGrain / std::max<int64_t>(elements_of_piece, 1)),
      [&](int64_t begin, int64_t end) {
        for (int64_t piece = begin; piece < end; ++piece) {
          double* slopes = sums.data() + 2 * piece * channels;
          body(piece, slopes, slopes + channels);
        }
      });
  auto totals = at::zeros({2, channels}, at::kDouble);
  double* total = totals.mutable_data_ptr<double>();
  for (int64_t piece = 0; piece < pieces; ++piece) {
    for (int64_t i = 0; i < 2 * channels; ++i) {
      total[i] += sums[2 * piece * channels + i];
    }
  }
  return {totals[0], totals[1]};
}

// For dense tensors of equal layout.
template <typename Rule, bool kOffset, typename Number>
std::pair<at::Tensor, at::Tensor> sumGradients(
    const at::Tensor& gradient, const at::Tensor& x, at::Tensor& result, const Grid<Number>& grid,
    Axis axis) {
  const Number *incoming = gradient.const_data_ptr<Number>(), *values = x.const_data_ptr<Number>();
  Number* to = result.mutable_data_ptr<Number>();
  if (x.numel() == 0) {
    const auto nothing = at::zeros({static_cast<int64_t>(grid.scales.size())}, at::kDouble);
    return {nothing, nothing};
  }
  const auto layout = channelLayout(x, axis);
  const int64_t channels = layout.channels;
  const auto row = [&](int64_t begin, int64_t count, int64_t channel, double* slopes, double* outside) {
    gradientsOfRow<Rule, kOffset>(
        incoming + begin, values + begin, to + begin, count, grid.scales[channel], grid.offsets[channel],
        grid.low, grid.high, slopes, outside);
  };
  if (channels == 1) {
    const int64_t pieces = (layout.inner + kGrain - 1) / kGrain;
    return sumOverPieces(pieces, 1, kGrain, [&](int64_t piece, double* slopes, double* outside) {
      const int64_t begin = piece * kGrain;
      row(begin, std::min(kGrain, layout.inner - begin), 0, slopes, outside);
    });
  }
  if (layout.inner == 1) {
    const int64_t rows = std::max((layout.outer + kPieces - 1) / kPieces, (kGrain + channels - 1) / channels);
    const int64_t pieces = (layout.outer + rows - 1) / rows;
    return sumOverPieces(pieces, channels, kGrain, [&](int64_t piece, double* slopes, double* outside) {
      const int64_t end = std::min((piece + 1) * rows, layout.outer);
      for (int64_t i = piece * rows; i < end; ++i) {
        const int64_t begin = i * channels;
        gradientsAcross<Rule, kOffset>(
            incoming + begin, values + begin, to + begin, channels, grid.scales.data(),
            grid.inverse_scales.data(), grid.offsets.data(), grid.low, grid.high, slopes, outside);
      }
    });
  }
  std::vector<double> slopes(layout.outer * channels), outside(slopes.size());
  at::parallel_for(
      0, layout.outer * channels, std::max<int64_t>(1, kGrain / layout.inner),
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          row(i * layout.inner, layout.inner, i % channels, &slopes[i], &outside[i]);
        }
      });
  const auto added = [&](const std::vector<double>& sums) {
    auto totals = at::zeros({channels}, at::kDouble);
    double* total = totals.mutable_data_ptr<double>();
    for (size_t i = 0; i < sums.size(); ++i) {
      total[i % channels] += sums[i];
    }
    return totals;
  };
  return {added(slopes), added(outside)};
}

inline void checkCount(const at::Tensor& numbers, const char* name, const at::Tensor& x, Axis axis) {
  const auto expected = axis ? x.sym_size(*axis) : c10::SymInt(1);
  TORCH_CHECK(
      numbers.sym_numel() == expected, expected, " ", name, " for ",
      axis ? "the channels of ch_axis" : "the tensor (ch_axis is None)", " expected, got ",
      numbers.sym_numel());
}

// The scale of each channel, and the offset or an undefined tensor.
template <typename Rule, bool kOffset = false>
TrainedGradients gradientsOnCpu(
    const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& scale, const at::Tensor& offset,
    int64_t quant_min, int64_t quant_max, Axis axis) {
  const auto values = denseOf(x).to(computedIn(x));
  auto incoming = gradient.to(values.scalar_type());
  if (incoming.strides() != values.strides()) { // the gradient of sum() is one expanded number
    incoming = at::empty_strided(values.sizes(), values.strides(), values.options()).copy_(incoming);
  }
  auto result = at::empty_strided(values.sizes(), values.strides(), values.options());
  const auto [slopes, outside] = dispatchPrecision(values, [&](auto number) {
    const Grid<decltype(number)> grid(scale, offset, quant_min, quant_max);
    return sumGradients<Rule, kOffset>(incoming, values, result, grid, axis);
  });
  return {result.to(x.scalar_type()), slopes, outside};
}

template <typename Rule>
TrainedGradients gradientsByOperators(
    const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& scale, const at::Tensor& offset,
    int64_t quant_min, int64_t quant_max, Axis axis) {
  const auto dtype = computedIn(x);
  const auto values = x.to(dtype), incoming = gradient.to(dtype);
  const auto steps = inSteps(
      offset.defined() ? values - alongAxis(offset.to(dtype), x, axis) : values,
      alongAxis(scale.to(dtype), x, axis));
  const auto [inside, slope] = Rule::of(steps, quant_min, quant_max);
  std::vector<int64_t> others;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (i != axis) {
      others.push_back(i);
    }
  }
  const auto sum = [&, axis](const at::Tensor& terms) { // without axes to reduce, sum would reduce all
    return (axis && others.empty() ? terms : at::sum(terms, others)).reshape({-1});
  };
  const auto result = at::where(inside, incoming, 0).to(x.scalar_type());
  const auto outside = offset.defined() ? sum(at::where(inside, 0, incoming)) : at::Tensor();
  return {result, sum(incoming * slope), outside};
}

// The sums in the shape and dtype of the parameter.
inline at::Tensor gradientOf(const at::Tensor& parameter, const at::Tensor& sums) {
  return sums.to(parameter.scalar_type()).reshape(parameter.sizes());
}

} // namespace jit_passes
