// The operators of fake quantization, as parts of other operators: called through the dispatcher, on any device and
// with a gradient.
#pragma once

#include "channels.h"

namespace jit_passes {

at::Tensor callFakeQuantize(
    const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point, int64_t quant_min,
    int64_t quant_max, Axis ch_axis, c10::string_view rounding);

at::Tensor callFakeQuantizeLearnable(
    const at::Tensor& x, const at::Tensor& scale, int64_t quant_min, int64_t quant_max, Axis ch_axis,
    c10::string_view rounding);

// The scale of TQT, with the gradient of its threshold.
at::Tensor scaleOfThreshold(const at::Tensor& log2_threshold, int64_t quant_min, int64_t quant_max);

// The scale of a moving average's range, [2] or [2, channels]. NaN if the range has seen no number.
at::Tensor scaleOfRange(
    const at::Tensor& range, int64_t quant_min, int64_t quant_max, c10::string_view qscheme);

} // namespace jit_passes
