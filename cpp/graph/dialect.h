// Names of the dialect's operators that passes look for.
#pragma once

#include "graph.h"

namespace jit_passes {

inline const auto quantize = symbol("jit_passes::quantize");
inline const auto dequantize = symbol("jit_passes::dequantize");
inline const auto dequantize_per_channel = symbol("jit_passes::dequantize_per_channel");
inline const auto choose_qparams = symbol("jit_passes::choose_qparams");
inline const auto quantize_dynamic = symbol("jit_passes::quantize_dynamic");
inline const auto dequantize_dynamic = symbol("jit_passes::dequantize_dynamic");
inline const auto fake_quantize = symbol("jit_passes::fake_quantize");
inline const auto lookup_table = symbol("jit_passes::lookup_table");
inline const auto edge = symbol("jit_passes::edge");
inline const auto correlation = symbol("jit_passes::correlation");
inline const auto add_bias = symbol("jit_passes::add_bias");
inline const auto fold_bias = symbol("jit_passes::fold_bias");
inline const auto deferred_bias = symbol("jit_passes::deferred_bias");
inline const auto deferred_weight = symbol("jit_passes::deferred_weight");
inline const auto deferred_batch_norm = symbol("jit_passes::deferred_batch_norm");

} // namespace jit_passes
