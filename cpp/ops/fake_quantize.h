#pragma once

#include "core/registry.h"

namespace jit_passes {

// jit_passes::fake_quantize through the dispatcher: on any device, with a gradient where one is due.
at::Tensor callFakeQuantize(
    const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point, int64_t quant_min,
    int64_t quant_max, std::optional<int64_t> ch_axis, c10::string_view rounding);

} // namespace jit_passes
