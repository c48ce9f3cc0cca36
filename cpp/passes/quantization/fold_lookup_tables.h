// Tables of integers in place of float functions between dequantize and quantize.
#pragma once

#include "graph/registry.h"

namespace jit_passes {

// The pass of that name. A compiler of regions calls it, whatever the registry has.
bool foldLookupTables(PassContext& context);

} // namespace jit_passes
