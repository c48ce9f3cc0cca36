// Operators of the dialect that several passes look for.
#pragma once

#include "core/jit.h"

namespace jit_passes {

inline const auto quantize = c10::Symbol::fromQualString("jit_passes::quantize");
inline const auto dequantize = c10::Symbol::fromQualString("jit_passes::dequantize");

} // namespace jit_passes
