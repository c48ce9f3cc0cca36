// The operators of fake quantization, for others to be composed of: through the dispatcher, on any
// device, with a gradient where one is due.
#pragma once

#include "core/registry.h"

namespace jit_passes {

at::Tensor callFakeQuantize(
    const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point, int64_t quant_min,
    int64_t quant_max, std::optional<int64_t> ch_axis, c10::string_view rounding);

at::Tensor callFakeQuantizeLearnable(
    const at::Tensor& x, const at::Tensor& scale, int64_t quant_min, int64_t quant_max,
    std::optional<int64_t> ch_axis, c10::string_view rounding);

// The scale of TQT, with the gradient of its threshold.
at::Tensor scaleOfThreshold(const at::Tensor& log2_threshold, int64_t quant_min, int64_t quant_max);

// The scale of a moving average's range, [2] or [2, channels]; not a number where it has seen nothing.
at::Tensor scaleOfRange(
    const at::Tensor& range, int64_t quant_min, int64_t quant_max, c10::string_view qscheme);

} // namespace jit_passes
